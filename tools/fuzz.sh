#!/usr/bin/env bash
# Runs one fuzz target of the asan build: tools/fuzz.sh fuzz_gguf [libFuzzer options]
#
# New inputs go to build/fuzz/TARGET and are used again by the next run; the seeds in fuzz/corpus/TARGET are only read. An
# input that breaks something is written to build/fuzz and named in the output.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
shift
mkdir -p "build/fuzz/$target"
corpus=("build/fuzz/$target")
if [ -d "fuzz/corpus/${target#fuzz_}" ]; then corpus+=("fuzz/corpus/${target#fuzz_}"); fi
exec "build/asan/$target" -timeout=20 -artifact_prefix=build/fuzz/ "$@" "${corpus[@]}"
