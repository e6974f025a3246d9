#!/usr/bin/env bash
# tools/pack.sh makes a self-contained folder. Here it runs with SwiftShader instead of an NVIDIA driver, in an empty environment.
set -uo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0
check() { # check WHAT COMMAND…
    local what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAIL $what"; fi
}
says() { # says FILE WORD…: all of them
    local file=$1 word
    shift
    for word in "$@"; do grep -qF -- "$word" "$file" || { echo "'$word' is not in:" && cat "$file" && return 1; }; done
}
driver=$(dpkg -L chromium chromium-common 2>/dev/null | grep -m 1 vk_swiftshader_icd.json)

check "packs" tools/pack.sh "$scratch/packed" build/release/test_gpu_host bench/h200.sh
for file in gemmule test_gpu_host h200.sh run.sh nvidia_icd.json libwebgpu_wrapper.so libvulkan.so.1 libedit.so.2 libturbojpeg.so.0 libwebp.so.7 libsndfile.so.1 \
            fallback/libstdc++.so.6; do
    check "$file is there" test -s "$scratch/packed/$file"
done
check "the C library is not" test ! -e "$scratch/packed/libc.so.6"
check "the driver is named by its library" says "$scratch/packed/nvidia_icd.json" libEGL_nvidia.so.0

mv "$scratch/packed" "$scratch/elsewhere" # no path of the build may matter
bare=(env -i "PATH=$PATH" "VK_ICD_FILENAMES=$driver" "$scratch/elsewhere/run.sh")
(cd / && "${bare[@]}" gemmule version) >"$scratch/version" 2>&1
check "gemmule version runs" says "$scratch/version" "$(build/gemmule version | head -n 1)"
(cd / && "${bare[@]}" gemmule devices) >"$scratch/devices" 2>&1
check "gemmule devices finds the GPU in software" says "$scratch/devices" SwiftShader
(cd / && "${bare[@]}" gemmule devices --json) >"$scratch/json" 2>&1
check "arguments are passed on" says "$scratch/json" '"software":true'
# The loader says where each library comes from.
LD_TRACE_LOADED_OBJECTS=1 LD_LIBRARY_PATH=$scratch/elsewhere "$scratch/elsewhere/gemmule" >"$scratch/libraries"
check "libraries come from the folder" says "$scratch/libraries" "libedit.so.2 => $scratch/elsewhere/libedit.so.2"
env -i "PATH=$PATH" "$scratch/elsewhere/run.sh" gemmule devices >"$scratch/none" 2>&1
check "without the driver from outside its own ICD file counts: no SwiftShader" test -z "$(grep SwiftShader "$scratch/none")"

# ---- refusals ----

refuses() { # refuses STATUS WORD COMMAND…
    local status=$1 word=$2 got=0
    shift 2
    "$@" >"$scratch/refusal" 2>&1 || got=$?
    [ $got = "$status" ] && says "$scratch/refusal" "$word"
}
mkdir "$scratch/mine" && echo precious >"$scratch/mine/file"
check "a program that is not there" refuses 1 "no/such/program" tools/pack.sh "$scratch/new" no/such/program
check "a failure leaves nothing" test ! -e "$scratch/new"
check "somebody else's folder" refuses 1 "is not a packed folder" tools/pack.sh "$scratch/mine"
check "somebody else's file" test -s "$scratch/mine/file"
check "no folder" refuses 3 "tools/pack.sh FOLDER" tools/pack.sh
check "run.sh without a program" refuses 3 "gemmule" "$scratch/elsewhere/run.sh"
check "run.sh with a wrong program" refuses 3 "'nothing'" "$scratch/elsewhere/run.sh" nothing
check "packing again replaces" tools/pack.sh "$scratch/elsewhere"
check "the old extra program is gone" test ! -e "$scratch/elsewhere/test_gpu_host"

printf '%d passed, %d failed\n' $passed $failed
[ $failed = 0 ]
