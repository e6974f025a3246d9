#!/usr/bin/env bash
# Runs one fuzz target of the asan build: tools/fuzz.sh fuzz_gguf [libFuzzer options]
#
# Writes new inputs to build/fuzz/TARGET, where the next run finds them; only reads the seeds in fuzz/corpus/TARGET. Writes an input
# that fails to build/fuzz and names it in the output.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
shift
mkdir -p "build/fuzz/$target"
corpus=("build/fuzz/$target")
if [ -d "fuzz/corpus/${target#fuzz_}" ]; then corpus+=("fuzz/corpus/${target#fuzz_}"); fi
exec "build/asan/$target" -timeout=20 -artifact_prefix=build/fuzz/ "$@" "${corpus[@]}"
