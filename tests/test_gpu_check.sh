#!/usr/bin/env bash
# The fixtures on the GPU, which here is SwiftShader: `gemmule check --backend gpu` with and without optional features.
#
#     tests/test_gpu_check.sh [program]
set -uo pipefail
cd "$(dirname "$0")/.."
program=${1:-${GEMMULE:-build/gemmule}}
export VK_ICD_FILENAMES=${VK_ICD_FILENAMES:-$(dpkg -L chromium chromium-common 2>/dev/null | grep -m 1 vk_swiftshader_icd.json)}
passed=0 failed=0

# check NAME TOLERANCE OPTION…
check() {
    local name=$1 tolerance=$2 output
    shift 2
    if output=$("$program" check "tests/fixtures/$name.gguf" "tests/fixtures/$name.expect.gguf" --backend gpu \
        --tolerance "$tolerance" --quiet "$@" 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s at %s %s\n%s\n' "$name" "$tolerance" "$*" "$output"
    fi
}

# soft NAME TOLERANCE OPTION…: prompts with an image and with a sound, from their soft tokens; there are no towers yet
soft() {
    local name=$1 tolerance=$2 output
    shift 2
    output=$("$program" check "tests/fixtures/$name.gguf" "tests/fixtures/$name.expect.gguf" --backend gpu --quiet "$@" 2>&1)
    if awk -v most="$tolerance" '/^(image|audio)\.logits [0-9]/ && $2 <= most { good++ } END { exit good != 2 }' <<<"$output"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s at %s %s\n%s\n' "$name" "$tolerance" "$*" "$output"
    fi
}

# Most of the time is spent compiling 8-bit products. At least one model uses each kind of kernel.
for name in tiny-dense tiny-moe; do # greedy tokens are part of these
    check $name 5e-3 --kv f32
    check $name 5e-3
done
for name in tiny-mm tiny-mm-bidir; do soft $name 5e-3; done
check small-dense-Q4_K_M 3e-2 --precise --kv q8_0
for options in "" "--gpu-disable subgroups,dot4,f16"; do
    for name in tiny-dense tiny-moe; do check $name 1e-4 --precise $options; done
    for name in tiny-mm tiny-mm-bidir; do soft $name 1e-4 --precise $options; done
    check small-dense-Q4_K_M 6e-2 $options
    check small-moe-Q4_K_M 0.15 $options
done
# The tiny models above and the op test cover the f32 kernels without features.
check small-dense-Q4_K_M 1e-3 --precise
check small-moe-Q4_K_M 1e-3 --precise
# Widths, heads and windows that no real model has.
check odd-dense 1e-4 --precise

printf '%d passed, %d failed\n' $passed $failed
[ $failed = 0 ]
