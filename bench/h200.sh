#!/usr/bin/env bash
# Measures on a server that has only an NVIDIA driver, with what bench/pack.sh has packed:
#
#   bench/h200.sh STEP… [FOLDER]      FOLDER: where the results go; it has a / in its name (default: results/)
#
#   all        the steps below, in this order, without the models beside e2b and 26b
#   pairs      the packed older gemmule and the new one in turn: E2B, prefill of 512 and 128 tokens decoded (pairs.txt)
#   cold       from the start of the program to the first token, without compiled shaders and with (cold.txt)
#   prefill    E2B, prompts of 512, 4096 and 16384 tokens; 26B, 512: with everything, and with the older kernels and batches
#   node       the same in Node on a newer Dawn, with f16 and subgroup matrices
#   profile    where the time goes in a prompt of 4096 tokens and in decoding, both ways, natively and in Node (profile-*.svg, with tables natively in .txt, in Node in .json and log.txt)
#   kernels    kernels_gpu natively and in Node, with everything and with the older kernels (kernels-*.txt)
#   steps      kernels_gpu in Node with other steps of the attention by matrices (kernels-step-*.txt)
#   ops        the ops' kernels against their formulas: ops-native, ops-attention, ops-matmul and ops-experts, the latter three in
#              Node and in pieces (ops.txt)
#   towers     a picture of 280 tokens by the small and the large tower, and 30 s of sound: tower-small and tower-large in Node (5
#              repeats, with a profile), tower-pairs in Node with the kernels of towers and without them, tower-native
#   tower-kernels  products and attention of towers, in Node with each choice of kernels, and natively (kernels-tower-*.txt)
#   sampler    all settings of the sampler, natively and in Node (kernels-sampler-*.txt)
#   f16        products with F16, BF16 and F32 weights, natively (kernels-f16*.txt)
#   parallel   E2B, 1 to 32 sequences at once
#   adapters   E2B with four adapters of rank 16 on all projections: one of them and none in turn; from one to another; 8 sequences with none, one,
#              and all four
#   experts    26B with all experts on the GPU, with all of them in the cache (all are found), with all but one of each layer, with 64 of
#              128, and with what fits --gpu-memory 6G: experts-random and experts-skewed, by the routing; each measurement has the hit
#              rate, the bytes of experts per token, how many came from copies in main memory and how fast those are written, how many
#              were loaded ahead of need, and the median time of a token; the kernel that looks up slots (experts-kernels: kernels-slots.txt)
#   train      E2B learns from 512 and 2,048 tokens a step, rank 16 on all projections: train-native and train-node (with profiles,
#              profile-train-*), train-kernels natively and in Node (kernels-train-*.txt), train-26b natively without expert adapters;
#              each measurement has the most GPU memory that nvidia-smi saw
#   diffusion  a denoising step of 256 positions behind 1,000 tokens and a block of 16 steps: diffusion-native and diffusion-node, each with a
#              profile (profile-diffusion-*), diffusion-memory natively within --gpu-memory 6G, and the head's kernels, diffusion-kernels (kernels-canvas-*.txt; ops.txt)
#   exact      --precise with a diffusion model: the ops natively and in Node against the CPU's bits, whole texts of tiny-diffusion on the CPU
#              and on the GPU (exact.txt), and the speed of the real shapes (exact-speed)
#   e2b 26b e4b 12b 31b      a model: prefill of 512 with 128 tokens decoded, and 128 tokens at a depth of 4096
#
# Pairs, cold and prefill take about 6 minutes on an H200, and the rest as long: two calls, if each may take 10 minutes. The steps from
# `ops` on are independent of the others, and each command of theirs takes less than a minute. Every step has a
# time limit, and all together DEADLINE seconds (default 570); what is measured is written at once, so a run that is cut
# off leaves its results. In FOLDER: bench.jsonl, an input for `node bench/results.mjs add` (a line per measurement: command, machine,
# date, clocks, output), the texts named above, nvidia-smi.txt, and log.txt with everything else.
#
# PACKED: the folder with the packed files (default build/h200). WORK: where they are unpacked and models written, kept for the next call
# (default /tmp/gemmule-h200). REPEATS (3), PAIRS (9). To try it on a machine without such a GPU: VK_ICD_FILENAMES=…, SYNTH="--layers 2"
# for smaller models, EXPERTS=e2b in the place of 26b, PROMPTS="64 300", LEARNED=16,24, QUICK=1 for kernels on small shapes.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
packed=${PACKED:-$root/build/h200} work=${WORK:-/tmp/gemmule-h200} repeats=${REPEATS:-3} pairs=${PAIRS:-9} deadline=${DEADLINE:-570}
prompts=${PROMPTS:-512 4096 16384} decode=${DECODE:-128} depth=${DEPTH:-4096} quick=(${QUICK:+--quick})
experts=${EXPERTS:-26b} learned=${LEARNED:-512,2048}
read -ra synth <<<"${SYNTH:-}"
older=blocks,matrix_attention,large_batches
out=results
steps=()
ops=(ops-native ops-attention ops-matmul ops-experts) towers=(tower-small tower-large tower-pairs tower-native)
cache=(experts-random experts-skewed experts-kernels) train=(train-native train-node train-kernels train-26b)
diffusion=(diffusion-native diffusion-memory diffusion-node diffusion-kernels)
unknown() { echo "h200.sh: there is no step '$1'; see the beginning of this file" >&2 && exit 3; }
for argument in "$@"; do
    case $argument in
    */*) out=$argument ;;
    all) steps+=(pairs cold prefill node profile kernels steps "${ops[@]}" "${towers[@]}" tower-kernels sampler f16 parallel adapters "${cache[@]}")
        steps+=("${train[@]}" "${diffusion[@]}" exact exact-speed) ;;
    ops) steps+=("${ops[@]}") ;;
    experts) steps+=("${cache[@]}") ;;
    towers) steps+=("${towers[@]}") ;;
    train) steps+=("${train[@]}") ;;
    diffusion) steps+=("${diffusion[@]}") ;;
    e2b | 26b | e4b | 12b | 31b) steps+=("$argument") ;;
    *) if grep -q "^step_$argument()" "$0"; then steps+=("$argument"); else unknown "$argument"; fi ;;
    esac
done
[ ${#steps[@]} != 0 ] || { sed -n '4s/^# *//p' "$0" >&2 && exit 3; }
mkdir -p "$out" "$work"
out=$(cd "$out" && pwd)
log=$out/log.txt

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

# ---- what is packed, and models ------------------------------------------------------------------------------------------------

[ -f "$packed/own.tar.xz" ] || { say "there is no $packed/own.tar.xz: run bench/pack.sh first" && exit 1; }
for part in own kit; do # without the kit, the steps that need no Node still run
    [ -f "$packed/$part.tar.xz" ] || continue
    stamp=$(stat -c '%s %Y' "$packed/$part.tar.xz")
    [ "$(cat "$work/.$part" 2>/dev/null)" != "$stamp" ] || continue
    say "unpacking $part"
    tar -C "$work" -xJf "$packed/$part.tar.xz" 2>>"$log" || { say "$packed/$part.tar.xz cannot be unpacked" && exit 1; }
    [ $part != kit ] || mv -f "$work/node" "$work/native/node" # so that run.sh finds it
    echo "$stamp" >"$work/.$part"
done
native=$work/native/run.sh
if [ -z "${VK_ICD_FILENAMES:-}" ]; then export VK_ICD_FILENAMES=$work/native/nvidia_icd.json VK_DRIVER_FILES=$work/native/nvidia_icd.json; fi
has() { [ -f "$work/$1" ] || { say "there is no $1 among what is packed" && return 1; }; }

# model SIZE[-skewed]: its file is there, or is written now; one at a time, since they are large.
model() {
    local size=${1%-skewed} own=("${synth[@]}")
    [ ! -f "$work/$1.gguf" ] || return 0
    [ "$1" = "$size" ] || own+=(--skewed)
    [ "$1" = e2b ] || find "$work" -maxdepth 1 -name '*.gguf' ! -name e2b.gguf ! -name '*.adapter.gguf' -delete
    limited 150 "$native" gemmule synth "$size" "$work/$1.part" "${own[@]}" --quiet && mv "$work/$1.part" "$work/$1.gguf"
}

machine="$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null | head -n 1 |
    sed 's/\(.*\), \(.*\), \(.*\)/\1 (\2), driver \3/'), $(nproc) CPU cores"
smi() { nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE,MEMORY >>"$out/nvidia-smi.txt" 2>&1 || echo "no nvidia-smi" >>"$out/nvidia-smi.txt"; }

# ---- one measurement -----------------------------------------------------------------------------------------------------------

# measure SECONDS NAME COMMAND…: one line of bench.jsonl; the command prints one JSON object. NAME: the command, for readers.
measure() {
    local seconds=$1 name=${2//$work\//} status=0 result sampler clocks
    shift 2
    nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,memory.used --format=csv,noheader,nounits -lms 200 >"$work/clocks" 2>/dev/null &
    sampler=$!
    result=$(limited "$seconds" "$@") || status=$?
    kill "$sampler" 2>/dev/null
    wait "$sampler" 2>/dev/null
    clocks=$(awk -F', ' '$1 > sm { sm = $1 } $2 > memory { memory = $2 } $3 > power { power = $3 } $4 > used { used = $4 }
        END { if (sm) printf "SM up to %d MHz, memory %d MHz, up to %d W; GPU memory up to %d MiB", sm, memory, power, used }' "$work/clocks")
    [ $status = 0 ] && [ -n "$result" ] || return
    printf '{"date":%s,"machine":%s,"clocks":%s,"command":%s,"result":%s}\n' "$(quoted "$(date -u +%Y-%m-%d)")" "$(quoted "$machine")" \
        "$(quoted "$clocks")" "$(quoted "$name")" "$result" >>"$out/bench.jsonl"
    case $result in *'"train":'*)
        grep -oE '"tokens":[0-9]+,("runs":[0-9]+,)?"seconds":[^,]*|"(tokens_per_second|gpu_bytes)":[0-9.e+]+' <<<"${result#*\"train\":}" | head -n 12 |
            tr '\n' ' ' | sed 's/^/    /; s/$/\n/' | tee -a "$log" >&2
        return ;;
    esac
    sed -E 's/.*"prefill":\{[^}]*"tokens_per_second":([0-9.e+]+).*"decode":\{[^}]*"tokens_per_second":([0-9.e+]+).*/    prefill \1, decode \2/' \
        <<<"$result" | sed -E 's/.*"step_seconds":([0-9.e-]+).*"block_seconds":[^}]*"tokens_per_second":([0-9.e+]+).*/    step \1 s, block \2 tokens per second/' |
        tee -a "$log" >&2
}

natively() { # natively SECONDS MODEL OPTION…
    measure "$1" "gemmule bench $2.gguf --backend gpu ${*:3} -r $repeats" "$native" gemmule bench "$work/$2.gguf" --backend gpu "${@:3}" -r "$repeats" --json
}
script() { # script FILE ARGUMENT…: a script in Node
    [ -x "$work/native/node" ] || { echo "there is no Node among what is packed" >&2 && return 1; }
    "$native" node --experimental-wasm-jspi --disable-warning=ExperimentalWarning "$work/$1" "${@:2}"
}
export -f script
export native work
in_node() { # in_node SECONDS MODEL OPTION…
    measure "$1" "bench/node/bench.mjs $2.gguf ${*:3} --repeats $repeats" \
        bash -c 'script "$@"' - bench/node/bench.mjs "$work/$2.gguf" --package "$work/web/dist" "${@:3}" --repeats "$repeats"
}

# ---- the steps -----------------------------------------------------------------------------------------------------------------

step_pairs() {
    has native/gemmule-old && model e2b || return
    limited 300 "$native" pairs.sh "$pairs" "$native gemmule-old" "$native gemmule" "$work/e2b.gguf" --backend gpu -p "${prompts%% *}" -n "$decode" |
        tee -a "$out/pairs.txt" >&2
}

step_cold() {
    model e2b || return
    limited 240 "$native" cold.sh "$native gemmule" "$work/e2b.gguf" "$repeats" | tee -a "$out/cold.txt" >&2
}

# Prompts of E2B, then of 26B, with everything and without.
prefill_by() { # prefill_by FUNCTION PREFILL-OPTION DECODE-OPTION OPTION…
    local n
    model e2b || return
    for n in $prompts; do
        "$1" 100 e2b "$2" "$n" "$3" 0 "${@:4}"
        "$1" 100 e2b "$2" "$n" "$3" 0 --gpu-disable $older
    done
    model "$experts" || return
    "$1" 150 "$experts" "$2" "${prompts%% *}" "$3" "$decode" "${@:4}"
    "$1" 150 "$experts" "$2" "${prompts%% *}" "$3" 0 --gpu-disable $older
}
step_prefill() { prefill_by natively -p -n; }
step_node() { prefill_by in_node --prefill --decode --warm "${WARM:-6}"; } # kernels for larger batches compile in the meantime

step_profile() {
    local without
    model e2b || return
    for without in "" $older; do
        limited 100 "$native" gemmule bench "$work/e2b.gguf" --backend gpu -p "$depth" -n 32 -d "$depth" -r 1 ${without:+--gpu-disable "$without"} \
            --profile "$out/profile-native${without:+-older}.svg" >"$out/profile-native${without:+-older}.txt"
        limited 100 bash -c 'script "$@"' - bench/node/bench.mjs "$work/e2b.gguf" --package "$work/web/dist" --prefill "$depth" --decode 32 --depth "$depth" \
            --repeats 1 ${without:+--gpu-disable "$without"} --profile "$out/profile-node${without:+-older}.svg" >"$out/profile-node${without:+-older}.json"
    done
}

kernels_in_node() { # kernels_in_node SECONDS FILE ARGUMENT…
    has wasm/kernels_gpu.wasm && limited "$1" bash -c 'script "$@"' - web/tests/run_gpu.ts "$work/wasm/kernels_gpu.wasm" "${quick[@]}" "${@:3}" >"$out/$2.txt"
}

step_kernels() {
    limited 150 "$native" kernels_gpu "${quick[@]}" >"$out/kernels-native.txt"
    kernels_in_node 150 kernels-node
    limited 60 "$native" kernels_gpu "${quick[@]}" --disable $older "256 tokens" >"$out/kernels-native-older.txt"
    kernels_in_node 60 kernels-node-older --disable $older "256 tokens"
}

step_steps() {
    local step
    for step in 1 2; do kernels_in_node 60 "kernels-step-$step" --step $step window; done
}

step_ops-native() {
    local features
    for features in "" subgroups,dot4,f16; do limited 60 "$native" test_ops gpu "$features" | tail -n 5 | tee -a "$out/ops.txt" >&2; done
}

# ops_in_node WITHOUT WORDS [deep]: the cases with these words in their names
ops_in_node() {
    has wasm/test_ops.wasm || return
    { echo "Node, without [$1], ${*:2}:" && limited 55 bash -c 'script "$@"' - web/tests/run_gpu.ts "$work/wasm/test_ops.wasm" gpu "$@" | tail -n 12; } |
        tee -a "$out/ops.txt" >&2
}
step_ops-attention() {
    local without
    for without in "" bands matrix_attention blocks,matrix_attention; do
        ops_in_node "$without" attention deep
        ops_in_node "$without" attention
    done
}
step_ops-matmul() {
    local without type
    for without in "" subgroup_matrix blocks; do
        for type in F16 BF16 F32 Q4_0 Q4_K Q5 Q6_K Q8_0; do ops_in_node "$without" "matmul $type"; done
    done
}
step_ops-experts() {
    local without type
    for without in "" subgroup_matrix; do
        for type in F32 Q8_0 Q4_K Q4_0; do ops_in_node "$without" "experts $type"; done
    done
}

# ---- towers: two layers of text beside them are enough ----

tower_model() { # tower_model SIZE
    [ ! -f "$work/tower-$1.gguf" ] || return 0
    limited 60 "$native" gemmule synth "$1" "$work/tower-$1.gguf" --layers 2 --towers --quiet
}
tower_media() { # the options for SIZE; only the small one has sounds
    echo "--mmproj $work/tower-$1.mmproj.gguf --image 280$([ "$1" != e2b ] || echo " --audio 30")"
}
tower_in_node() { # tower_in_node SIZE OPTION…
    tower_model "$1" || return
    # shellcheck disable=SC2046 # several arguments
    repeats=5 in_node 58 "tower-$1" $(tower_media "$1") --prefill 0 --decode 0 --warm 1 "${@:2}"
}
step_tower-small() { tower_in_node e2b --profile "$out/tower-small.svg"; }
step_tower-large() { tower_in_node 31b --profile "$out/tower-large.svg"; }
step_tower-pairs() {
    local size without
    for size in e2b 31b; do
        for without in "" bands "" deep_splits; do tower_in_node $size ${without:+--gpu-disable "$without"}; done
    done
}
step_tower-native() {
    local size
    for size in e2b 31b; do
        # shellcheck disable=SC2046 # several arguments
        tower_model $size && natively 58 tower-$size $(tower_media $size) -p 0 -n 0 --profile "$out/tower-$size-native.svg"
    done
}

step_tower-kernels() {
    local without
    for without in "" bands deep_splits; do kernels_in_node 55 "kernels-tower-node${without:+-without-$without}" ${without:+--disable "$without"} tower; done
    kernels_in_node 55 kernels-tower-node-four-bands --step 1 "tower attention"
    limited 55 "$native" kernels_gpu "${quick[@]}" tower >"$out/kernels-tower-native.txt"
}
step_sampler() {
    limited 55 "$native" kernels_gpu "${quick[@]}" sampler >"$out/kernels-sampler-native.txt"
    kernels_in_node 55 kernels-sampler-node sampler
}
step_f16() {
    local without
    limited 55 "$native" kernels_gpu "${quick[@]}" "matmul F16" >"$out/kernels-f16.txt"
    limited 55 "$native" kernels_gpu "${quick[@]}" "matmul BF16" >>"$out/kernels-f16.txt"
    limited 55 "$native" kernels_gpu "${quick[@]}" "matmul F32" >>"$out/kernels-f16.txt"
    for without in blocks; do
        limited 55 "$native" kernels_gpu "${quick[@]}" --disable $without "matmul F16" >"$out/kernels-f16-without-$without.txt"
    done
}

step_parallel() { model e2b && natively 150 e2b -p 0 -n "$decode" -d 128 --parallel 1,2,4,8,16,32; }

step_adapters() {
    local i own=()
    model e2b || return
    for i in 1 2 3 4; do
        own+=(--adapter "$work/random-$i.adapter.gguf")
        [ -f "$work/random-$i.adapter.gguf" ] || limited 60 "$native" gemmule adapter random "$work/e2b.gguf" "$work/random-$i.adapter.gguf" --rank 16 --seed "$i" ||
            return
    done
    for i in 1 2; do
        natively 60 e2b -p "${prompts%% *}" -n "$decode"
        natively 60 e2b -p "${prompts%% *}" -n "$decode" "${own[@]:0:2}"
    done
    natively 60 e2b -p 0 -n 2 "${own[@]:0:4}" # from one to the other
    natively 60 e2b -p 0 -n "$decode" -d 128 --parallel 8
    natively 60 e2b -p 0 -n "$decode" -d 128 --parallel 8 "${own[@]:0:2}"
    natively 60 e2b -p 0 -n "$decode" -d 128 --parallel 8 "${own[@]}"
    limited 60 "$native" kernels_gpu "${quick[@]}" "with adapters" >"$out/kernels-adapters.txt"
    limited 60 "$native" gemmule bench "$work/e2b.gguf" --backend gpu -p 0 -n 32 -r 1 "${own[@]:0:2}" --profile "$out/profile-adapters.svg" >"$out/profile-adapters.txt"
}

experts_of() { # experts_of MODEL
    local slots
    model "$1" || return
    natively 60 "$1" -p "${prompts%% *}" -n "$decode"
    for slots in ${SLOTS:-128 127}; do natively 60 "$1" -p "${prompts%% *}" -n "$decode" --gpu-experts "$slots"; done
    # A token takes up to a fifth of a second there.
    natively 120 "$1" -p "${prompts%% *}" -n $(((decode + 3) / 4)) --gpu-experts 64
    natively 120 "$1" -p "${prompts%% *}" -n $(((decode + 3) / 4)) --gpu-memory "${BUDGET:-6G}"
}
step_experts-random() { experts_of "$experts"; }
step_experts-skewed() { experts_of "$experts-skewed"; }
step_experts-kernels() { limited 30 "$native" kernels_gpu "${quick[@]}" slots >"$out/kernels-slots.txt"; }

step_train-native() {
    model e2b || return
    natively 150 e2b -p 0 -n 0 --train "$learned"
    for n in ${learned//,/ }; do
        limited 100 "$native" gemmule bench "$work/e2b.gguf" --backend gpu -p 0 -n 0 -r 1 --train "$n" --profile "$out/profile-train-native-$n.svg" \
            >"$out/profile-train-native-$n.txt"
    done
}
train_in_node() { # train_in_node SECONDS OPTION…
    measure "$1" "bench/node/train.mjs e2b.gguf ${*:2} --repeats $repeats" \
        bash -c 'script "$@"' - bench/node/train.mjs "$work/e2b.gguf" --package "$work/web/dist" "${@:2}" --repeats "$repeats"
}
step_train-node() {
    model e2b || return
    train_in_node 150 --tokens "$learned"
    train_in_node 100 --tokens "${learned%%,*}" --gpu-disable subgroup_matrix
    for n in ${learned//,/ }; do
        limited 100 bash -c 'script "$@"' - bench/node/train.mjs "$work/e2b.gguf" --package "$work/web/dist" --tokens "$n" --repeats 1 \
            --profile "$out/profile-train-node-$n.svg" 2>&1 >"$out/profile-train-node-$n.json" | tee "$out/profile-train-node-$n.txt" >>"$log"
    done
}
step_train-kernels() {
    limited 100 "$native" kernels_gpu "${quick[@]}" train >"$out/kernels-train-native.txt"
    kernels_in_node 100 kernels-train-node train
}
step_train-26b() {
    model "$experts" || return
    natively 200 "$experts" -p 0 -n 0 --train "${learned%%,*}" --gpu-memory 24000000000
}

# ---- a diffusion model: --decode 1 asks for blocks ----

prefix=${PREFIX:-1000} denoise=${STEPS:-16}
step_diffusion-native() {
    model diffusion || return
    natively 150 diffusion -p "${prompts%% *}" -n 1 -d "$prefix" --steps "$denoise"
    limited 100 "$native" gemmule bench "$work/diffusion.gguf" --backend gpu -p 0 -n 1 -d "$prefix" --steps "$denoise" -r 1 \
        --profile "$out/profile-diffusion-native.svg" >"$out/profile-diffusion-native.txt"
}
step_diffusion-memory() { model diffusion && natively 200 diffusion -p "${prompts%% *}" -n 1 -d "$prefix" --steps "$denoise" --gpu-memory "${BUDGET:-6G}"; }
step_diffusion-node() {
    model diffusion || return
    in_node 200 diffusion --prefill "${prompts%% *}" --decode 1 --depth "$prefix" --steps "$denoise" --warm "${WARM:-6}" \
        --profile "$out/profile-diffusion-node.svg"
}
exact_text() { limited 60 "$native" gemmule run "$root/tests/fixtures/tiny-diffusion.gguf" "Hello there" --precise --max 64 --quiet "$@" | base64; }
step_exact() {
    local seed text same=0 tried=0
    { echo "natively:" && limited 100 "$native" test_ops gpu "" "exact gpu" 2>&1 | tail -n 12; } | tee -a "$out/exact.txt" >&2
    ops_in_node "" "exact gpu"
    for seed in 1 2 3 4 5 6; do
        tried=$((tried + 1)) text=$(exact_text --seed $seed --backend cpu)
        [ -z "$text" ] || [ "$text" != "$(exact_text --seed $seed --backend gpu)" ] || same=$((same + 1))
    done
    echo "texts of tiny-diffusion that are the same on the CPU and on the GPU: $same of $tried" | tee -a "$out/exact.txt" >&2
}
step_exact-speed() { model diffusion && natively 150 diffusion -p "${prompts%% *}" -n 1 -d "$prefix" --steps 4 --precise; }
step_diffusion-kernels() {
    limited 60 "$native" kernels_gpu "${quick[@]}" canvas >"$out/kernels-canvas-native.txt"
    kernels_in_node 60 kernels-canvas-node canvas
    ops_in_node "" "canvas head"
    ops_in_node subgroup_matrix "canvas head"
}

step_model() {
    model "$1" || return
    natively 120 "$1" -p "${prompts%% *}" -n "$decode"
    natively 150 "$1" -p 0 -n "$decode" -d "$depth"
}

say "$machine, $(date -u)"
limited 30 "$native" gemmule version | tee -a "$log" >&2
limited 30 "$native" gemmule devices | tee -a "$log" >&2
smi
# Short work between pauses is otherwise measured at the clocks of an idle GPU.
fastest=$(nvidia-smi --query-gpu=clocks.max.sm --format=csv,noheader,nounits 2>/dev/null | head -n 1)
[ -z "$fastest" ] || ! nvidia-smi -lgc "$fastest,$fastest" >>"$log" 2>&1 || say "clocks locked at $fastest MHz"
for step in "${steps[@]}"; do
    say "---- $step"
    if declare -F "step_$step" >/dev/null; then "step_$step"; else step_model "$step"; fi
done
smi
touch "$out/bench.jsonl"
say "$(wc -l <"$out/bench.jsonl") measurements in $out"
