#!/usr/bin/env bash
# Measures on a server with a GPU, inside a folder made by tools/pack.sh (with this script and bench/kernels_gpu packed along):
#
#   OUT=results ./run.sh h200.sh [e2b] [26b] [e4b] [31b] [kernels] [tests]      default: e2b 26b
#
# For each model: a file of random weights, then `gemmule bench --backend gpu --json` of a prefill of 512 with 128 tokens decoded, and of
# 128 tokens at a depth of 4096. Every step has a time limit, so that one that hangs does not spoil the rest. Writes into $OUT:
#
#   bench.jsonl     one line per measurement: command, machine, date, clocks, and the output; an input for
#                   `node bench/results.mjs add bench.jsonl`
#   kernels.json    what kernels_gpu --json prints, and kernels-older.json with the older kernels of many tokens
#       nvidia-smi.txt  the GPU, before and after      log.txt  everything else
#
# MODELS: the folder for model files (default /tmp); each is removed after its turn unless KEEP=1. REPEATS: runs of each (default 3).
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-results} models=${MODELS:-/tmp} repeats=${REPEATS:-3}
[ $# != 0 ] || set -- e2b 26b
mkdir -p "$out" "$models"
log=$out/log.txt
: >"$log"
: >"$out/bench.jsonl"

say() { printf '%s\n' "$*" | tee -a "$log"; }
quoted() { printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | sed 's/[\\"]/\\&/g')"; }

machine="$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null | head -n 1 |
    sed 's/\(.*\), \(.*\), \(.*\)/\1 (\2), driver \3/'), $(nproc) CPU cores"
smi() { nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE,MEMORY >>"$out/nvidia-smi.txt" 2>&1 || echo "no nvidia-smi" >>"$out/nvidia-smi.txt"; }

# limited SECONDS COMMAND…: stdout passes, the rest goes to the log.
limited() {
    local seconds=$1 status=0
    shift
    say "+ $*" >&2
    timeout --kill-after=5 "$seconds" "$@" 2>>"$log" || status=$?
    [ $status = 0 ] || say "  ended with $status" >&2
    return $status
}

# measure SECONDS MODEL OPTION…: one line of bench.jsonl.
measure() {
    local seconds=$1 model=$2 status=0 result sampler clocks
    shift 2
    nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw --format=csv,noheader,nounits -lms 200 >"$out/.clocks" 2>/dev/null &
    sampler=$!
    result=$(limited "$seconds" "$here/run.sh" gemmule bench "$models/$model.gguf" --backend gpu "$@" -r "$repeats" --json) || status=$?
    kill "$sampler" 2>/dev/null
    wait "$sampler" 2>/dev/null
    clocks=$(awk -F', ' '$1 > sm { sm = $1 } $2 > memory { memory = $2 } $3 > power { power = $3 }
        END { if (sm) printf "SM up to %d MHz, memory %d MHz, up to %d W", sm, memory, power }' "$out/.clocks")
    rm -f "$out/.clocks"
    [ $status = 0 ] && [ -n "$result" ] || return
    printf '{"date":%s,"machine":%s,"clocks":%s,"command":%s,"result":%s}\n' "$(quoted "$(date -u +%Y-%m-%d)")" "$(quoted "$machine")" \
        "$(quoted "$clocks")" "$(quoted "gemmule bench $model.gguf --backend gpu $* -r $repeats")" "$result" >>"$out/bench.jsonl"
    say "$result"
}

model() { # model SIZE: synth, then both measurements
    limited 150 "$here/run.sh" gemmule synth "$1" "$models/$1.gguf" --quiet || return
    measure 120 "$1" -p 512 -n 128
    measure 150 "$1" -p 0 -n 128 -d 4096
    [ "${KEEP:-0}" = 1 ] || rm -f "$models/$1.gguf"
}

say "$machine, $(date -u)"
limited 30 "$here/run.sh" gemmule version | tee -a "$log"
limited 30 "$here/run.sh" gemmule devices | tee -a "$log"
smi
for step in "$@"; do
    case $step in
    kernels)
        limited 240 "$here/run.sh" kernels_gpu --json >"$out/kernels.json"
        limited 120 "$here/run.sh" kernels_gpu --json --disable blocks "256 tokens" >"$out/kernels-older.json" # for comparison
        ;;
    tests) for features in "" subgroups,dot4,f16; do limited 120 "$here/run.sh" test_ops gpu "$features" | tail -n 5 | tee -a "$log"; done ;;
    e2b | e4b | 12b | 26b | 31b) model "$step" ;;
    *) say "h200.sh: there is no step '$step': e2b, e4b, 12b, 26b, 31b, kernels, tests" ;;
    esac
done
smi
say "$(wc -l <"$out/bench.jsonl") measurements"
