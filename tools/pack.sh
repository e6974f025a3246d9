#!/usr/bin/env bash
# Makes a folder that runs on a server that has only an NVIDIA driver: no X, no packages, no network.
#
#   tools/pack.sh FOLDER [PROGRAM…]      build/gemmule, and further programs, e.g. build/release/test_ops
#
# It contains the programs, Dawn (npm package bun-webgpu-linux-x64), the Vulkan loader, the shared libraries that a bare server
# lacks, an ICD file that names the driver's headless Vulkan (libEGL_nvidia.so.0), and
#
#   run.sh PROGRAM [ARGUMENT…]      runs a program of the folder with all that; VK_ICD_FILENAMES or VK_DRIVER_FILES, if set, win
#
# If something is missing, names it and makes no folder.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

die() { printf 'pack: %s\n' "$*" >&2; exit 1; }

if [ $# = 0 ] || [[ $1 == -* ]]; then
    sed -n '4s/^# *//p' "$0" >&2
    exit 3
fi
folder=$1
shift
[ ! -e "$folder" ] || [ -e "$folder/run.sh" ] || die "'$folder' exists and is not a packed folder: choose another name, or remove it"
programs=("$root/build/gemmule" "$@")
dawn=$root/node_modules/bun-webgpu-linux-x64/libwebgpu_wrapper.so

for program in "${programs[@]}"; do [ -f "$program" ] || die "there is no '$program': build it first (make, or cmake --build --preset release)"; done
[ -f "$dawn" ] || die "there is no '$dawn': tools/setup.sh build gets it"
libraries=$(ldconfig -p) # read to its end: a reader that leaves early would end ldconfig, and pipefail this script
loader=$(awk '/^\tlibvulkan\.so\.1 .*x86-64/ { print $NF; exit }' <<<"$libraries")
[ -n "$loader" ] || die "there is no libvulkan.so.1 here: apt-get install libvulkan1"

parent=$(dirname "$folder")
mkdir -p "$parent"
new=$(mktemp -d "$parent/.pack-XXXXXX")
trap 'rm -rf "$new"' EXIT
mkdir "$new/fallback"

# Libraries that every glibc system with an NVIDIA driver has. All others are packed.
is_everywhere() { [[ $1 =~ ^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libresolv|libutil)\.so ]]; }

pack_libraries_of() {
    local name arrow path rest
    while read -r name arrow path rest; do
        [ "$arrow" = "=>" ] || continue
        [ "$path" != not ] || die "'$1' needs $name, which is not here"
        is_everywhere "$name" && continue
        # If the server has a C++ library, it may be newer, and its driver may need it.
        if [[ $name =~ ^lib(stdc\+\+|gcc_s)\.so ]]; then cp -L "$path" "$new/fallback/$name"; else cp -L "$path" "$new/$name"; fi
    done < <(ldd "$1" 2>/dev/null)
}

for program in "${programs[@]}"; do
    cp -L "$program" "$new/"
    chmod +x "$new/$(basename "$program")"
    # Scripts have no libraries.
    if [ "$(head -c 4 "$program")" = $'\x7fELF' ]; then pack_libraries_of "$program"; fi
done
cp -L "$dawn" "$new/"
pack_libraries_of "$dawn"
cp -L "$loader" "$new/libvulkan.so.1"
pack_libraries_of "$loader"

cat >"$new/nvidia_icd.json" <<'JSON'
{ "file_format_version": "1.0.1", "ICD": { "library_path": "libEGL_nvidia.so.0", "api_version": "1.3.0" } }
JSON

cat >"$new/run.sh" <<'SCRIPT'
#!/usr/bin/env bash
# run.sh PROGRAM [ARGUMENT…]: runs a program of this folder with the libraries and the Vulkan driver that it needs.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ $# = 0 ]; then echo "usage: run.sh PROGRAM [ARGUMENT…]; there is: $(cd "$here" && ls | grep -vE '\.(so|json)|fallback|run\.sh' | tr '\n' ' ')" >&2; exit 3; fi
program=$1
shift
[ -x "$here/$program" ] || { echo "run.sh: there is no program '$program' in $here" >&2; exit 3; }
# Asks where the driver's library is, because containers have it in odd places.
libraries=$(ldconfig -p 2>/dev/null || true)
driver=$(awk '/libEGL_nvidia\.so\.0/ { print $NF; exit }' <<<"$libraries")
if [[ $libraries != *'libstdc++.so.6 '* ]]; then LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$here/fallback; fi
export LD_LIBRARY_PATH="$here${driver:+:$(dirname "$driver")}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if [ -z "${VK_ICD_FILENAMES:-}${VK_DRIVER_FILES:-}" ]; then
    export VK_DRIVER_FILES=$here/nvidia_icd.json VK_ICD_FILENAMES=$here/nvidia_icd.json
fi
# The driver needs both, and a bare server has neither.
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/tmp} HOME=${HOME:-/tmp}
exec "$here/$program" "$@"
SCRIPT
chmod +x "$new/run.sh"
chmod 755 "$new"

rm -rf "$folder"
mv "$new" "$folder"
trap - EXIT
du -sh "$folder" | awk '{ printf "pack: %s, %s\n", $2, $1 }' >&2
