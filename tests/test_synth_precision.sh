#!/usr/bin/env bash
# Models of `gemmule synth` compute what they should: with --precise as in double precision, and with 8-bit activations nearly so. Few
# layers of each size with their real widths, on 40 tokens and a window of 32.
#
# The expectations are for exactly these weights. If `synth` writes other weights, tests/witness.py computes them anew:
#
#     tests/test_synth_precision.sh [program]
#     tests/test_synth_precision.sh renew [program]
set -uo pipefail
cd "$(dirname "$0")/.."
renew=
if [ "${1:-}" = renew ]; then renew=1; shift; fi
program=${1:-${GEMMULE:-build/gemmule}}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0

# check NAME TOLERANCE OPTION…
check() {
    local name=$1 tolerance=$2 output
    shift 2
    if output=$("$program" check "$scratch/model.gguf" "$expect" --backend cpu --tolerance "$tolerance" --quiet "$@" 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s at %s %s\n%s\n' "$name" "$tolerance" "$*" "$output"
    fi
}

# E2B and E4B have one layer more than a period, which shares keys and values.
for size in e2b:6 e4b:7 12b:2 26b:2 31b:2; do
    name=${size%:*} expect=tests/fixtures/synth-${size%:*}.expect.gguf
    "$program" synth "$name" "$scratch/model.gguf" --layers "${size#*:}" --vocabulary 512 --window 32 --quiet || failed=$((failed + 1))
    [ -z "$renew" ] || /usr/bin/python3 tests/witness.py "$scratch/model.gguf" "$expect" --tokens 40 --rows 4 || exit 1
    check "$name" 1e-5 --precise
    check "$name" 0.05
done

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
