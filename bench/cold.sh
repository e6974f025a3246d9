#!/usr/bin/env bash
# How long a model takes from the start of the program to its first token, with and without compiled shaders in the driver's cache.
#
#   bench/cold.sh PROGRAM MODEL [RUNS]      default: 3 runs of each; PROGRAM may be "FOLDER/run.sh gemmule" of a folder made by tools/pack.sh
#
# "cold" turns the driver's disk cache off (NVIDIA, Mesa); "warm" uses a cache of its own, which a run before has filled. If the two do
# not differ, the driver ignores the variables. The first token's time is from `gemmule run --json` (opening, prompt, token), beside the
# time of the whole program; the phases are those of a second program, from `gemmule bench --json`.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '4s/^# *//p' "$0" >&2 && exit 3; }
program=$1 model=$2 runs=${3:-3}
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
cold=(env __GL_SHADER_DISK_CACHE=0 MESA_SHADER_CACHE_DISABLE=true)
warm=(env __GL_SHADER_DISK_CACHE=1 "__GL_SHADER_DISK_CACHE_PATH=$cache" "MESA_SHADER_CACHE_DIR=$cache")
field() { sed -nE "s/.*\"$1\":([0-9.e+-]+).*/\1/p" <<<"$2"; }

# once NAME COMMAND…: a line for one run
once() {
    local name=$1 begin end answer phases
    shift
    begin=$(date +%s.%N)
    # shellcheck disable=SC2086 # a program may be two words
    answer=$("$@" $program run "$model" "Hello" --max 1 --backend gpu --json 2>/dev/null </dev/null)
    end=$(date +%s.%N)
    # shellcheck disable=SC2086
    phases=$("$@" $program bench "$model" --backend gpu -p 16 -n 1 -r 1 --json 2>/dev/null </dev/null)
    awk -v a="$begin" -v b="$end" -v name="$name" -v load="$(field load_seconds "$answer")" -v prompt="$(field prompt_seconds "$answer")" \
        -v reply="$(field reply_seconds "$answer")" \
        'BEGIN { printf "%s: first token after %.2f s (opening %.2f s), program %.2f s\n", name, load + prompt + reply, load, b - a }'
    printf '    open %.2f s: self-check %.2f s beside upload %.2f s, then %.2f s for %d shaders; plans %.2f s\n' \
        "$(field load_seconds "$phases")" "$(field self_check_seconds "$phases")" "$(field upload_seconds "$phases")" \
        "$(field shader_seconds "$phases")" "$(field shaders "$phases")" "$(field plan_seconds "$phases")"
}

cat "$model" >/dev/null # from the page cache, as after a download
for ((i = 0; i < runs; i++)); do once cold "${cold[@]}"; done
once "warm, filling the cache" "${warm[@]}"
for ((i = 0; i < runs; i++)); do once warm "${warm[@]}"; done
