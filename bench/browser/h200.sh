#!/usr/bin/env bash
# Measures the web part on a server that has only an NVIDIA driver, with what bench/browser/pack.sh has packed:
#
#   OUT=results bench/browser/h200.sh [e2b] [box] [node] [ollama]      default: all, in this order
#
#   e2b      `gemmule synth e2b` in headless Chromium: prefill and decode
#   box      the model in the box in llama.cpp's format, in Chromium: gemmule and wllama
#   node     the same e2b in Node on Dawn, with f16 and subgroup matrices
#   ollama   `synth e2b --flavour ollama` (its per-layer table is BF16, 4.7 GB) in Node: all of it on the GPU, and with the
#            table's rows read from the file
#
# Writes bench.jsonl, an input for `node bench/results.mjs add`, and log.txt into $OUT. Every step has a time limit; all together
# DEADLINE seconds (default 235). PACKED: the folder with the parts (build/h200-browser). MODELS: the folder for models and unpacked
# files (default: a new folder in /tmp, removed at the end). To try it on a machine without such a GPU: GPU=software
# VK_ICD_FILENAMES=…, LAYERS=N for smaller models, and MEMORY, a budget in bytes that the table does not fit in (default 4 GiB).
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${OUT:-results} packed=${PACKED:-$root/build/h200-browser} gpu=${GPU:-native} repeats=${REPEATS:-3} deadline=${DEADLINE:-235}
prefill=${PREFILL:-512} decode=${DECODE:-128} memory=${MEMORY:-4294967296} layers=${LAYERS:+--layers $LAYERS}
[ $# != 0 ] || set -- e2b box node ollama
mkdir -p "$out"
out=$(cd "$out" && pwd)
log=$out/log.txt
: >"$log"
: >"$out/bench.jsonl"
work=${MODELS:-$(mktemp -d)}
[ -n "${MODELS:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"

say() { printf '%4d s  %s\n' $SECONDS "$*" | tee -a "$log" >&2; }
quoted() { printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | sed 's/[\\"]/\\&/g')"; }

# limited SECONDS COMMAND…: stdout passes, the rest goes to the log; never beyond the deadline.
limited() {
    local seconds=$1 status=0 left=$((deadline - SECONDS))
    shift
    if [ $left -lt 5 ]; then say "no time left for: $*"; return 1; fi
    [ "$seconds" -le $left ] || seconds=$left
    say "+ $*"
    timeout --kill-after=5 "$seconds" "$@" 2>>"$log" || status=$?
    [ $status = 0 ] || say "  ended with $status"
    return $status
}

# ---- unpacking ---------------------------------------------------------------------------------------------------------

say "unpacking"
cat "$packed"/kit.tar.xz.* | xz -dc -T0 2>>"$log" | tar -x -C "$work" 2>>"$log" & kit_job=$!
xz -dc "$packed/own.tar.xz" 2>>"$log" | tar -x -C "$work" 2>>"$log" || { say "own.tar.xz cannot be unpacked"; exit 1; }
wants() { [[ " $steps " == *" $1 "* ]]; }
steps=$*
native=$work/own/native/run.sh
synth() { limited 120 "$native" gemmule synth e2b "$work/$1.gguf" $layers --quiet "${@:2}"; }
synths=()
if wants e2b || wants node; then synth e2b & synths+=($!); fi
if wants ollama; then synth e2b-ollama --flavour ollama & synths+=($!); fi
wait "$kit_job" || { say "the kit cannot be unpacked: are all parts there?"; exit 1; }
kit=$work/kit
# Node looks for packages in the folders above a script.
mkdir -p "$work/bench" "$work/web/tests/browser"
cp -r "$root/bench/browser" "$root/bench/node" "$work/bench/"
cp "$root"/web/tests/browser/{server,chromium}.ts "$work/web/tests/browser/"
ln -sfn "$work/own/dist" "$work/web/dist"
ln -sfn "$kit/node_modules" "$work/node_modules"
ln -sfn "$kit/node_modules" "$work/own/node_modules"
echo '{"type":"module"}' >"$work/package.json"
say "unpacked"

# ---- the environment ---------------------------------------------------------------------------------------------------

if [ -z "${VK_ICD_FILENAMES:-}" ]; then
    export VK_ICD_FILENAMES=$work/own/native/nvidia_icd.json VK_DRIVER_FILES=$work/own/native/nvidia_icd.json
fi
libraries=$(ldconfig -p 2>/dev/null || true)
driver=$(awk '/libEGL_nvidia\.so\.0/ { print $NF; exit }' <<<"$libraries")
path=$kit/lib:$kit/chromium${driver:+:$(dirname "$driver")}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [[ $libraries != *'libstdc++.so.6 '* ]]; then path=$path:$kit/fallback; fi
with_kit() { env LD_LIBRARY_PATH="$path" XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/tmp}" HOME="${HOME:-/tmp}" "$@"; }
export -f with_kit
export path

machine=$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null | head -n 1 |
    sed 's/\(.*\), \(.*\), \(.*\)/\1 (\2), driver \3/')
machine="${machine:-no GPU}, $(nproc) CPU cores"

# Clocks while a command runs, which prints lines of bench.jsonl.
with_clocks() {
    local sampler clocks
    nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw --format=csv,noheader,nounits -lms 200 >"$work/clocks" 2>/dev/null & sampler=$!
    "$@" >"$work/lines"
    kill "$sampler" 2>/dev/null
    wait "$sampler" 2>/dev/null
    clocks=$(awk -F', ' '$1 > sm { sm = $1 } $2 > memory { memory = $2 } $3 > power { power = $3 }
        END { if (sm) printf "SM up to %d MHz, memory %d MHz, up to %d W", sm, memory, power }' "$work/clocks")
    sed "s/\"clocks\":\"\"/\"clocks\":\"$clocks\"/" "$work/lines" | tee -a "$out/bench.jsonl"
}

# ---- measuring ---------------------------------------------------------------------------------------------------------

browser() { # browser SECONDS MODEL OPTION…
    limited "$1" bash -c 'with_kit "$@"' - "$kit/node" "$work/bench/browser/bench.mjs" "$2" --gpu "$gpu" --chromium "$kit/chromium/chromium" --dist "$work/own/dist" \
        --wllama "$work/own/wllama" --machine "$machine" --prefill "$prefill" --decode "$decode" --repeats "$repeats" --verbose "${@:3}"
}

in_node() { # in_node SECONDS MODEL OPTION…
    local result
    result=$(limited "$1" bash -c 'with_kit "$@"' - "$kit/node" "$work/bench/node/bench.mjs" "$work/$2.gguf" --package "$work/own/dist" --prefill "$prefill" --decode "$decode" \
        --repeats "$repeats" "${@:3}") || return
    printf '{"date":%s,"machine":%s,"clocks":"","command":%s,"result":%s}\n' "$(quoted "$(date -u +%Y-%m-%d)")" "$(quoted "$machine")" \
        "$(quoted "bench/node/bench.mjs $2.gguf --prefill $prefill --decode $decode --repeats $repeats${3:+ ${*:3}}")" "$result"
}

say "$machine, $(date -u)"
wait "${synths[@]}"
say "models are written"
for step in "$@"; do
    case $step in
    e2b) with_clocks browser 90 "$work/e2b.gguf" --engines gemmule-gpu --no-cache ;;
    box)
        if [ -f "$work/own/box-text.gguf" ]; then with_clocks browser 80 "$work/own/box-text.gguf" --engines gemmule-gpu,wllama
        else say "there is no box-text.gguf among the parts"; fi ;;
    node) with_clocks in_node 60 e2b ;;
    ollama)
        with_clocks in_node 60 e2b-ollama
        with_clocks in_node 60 e2b-ollama --gpu-memory "$memory" ;;
    *) say "there is no step '$step': e2b, box, node, ollama" ;;
    esac
done
say "$(wc -l <"$out/bench.jsonl") measurements"
