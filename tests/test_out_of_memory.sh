#!/usr/bin/env bash
# A request for memory fails, one after the other: the program succeeds as before, or exits with 4 and says that memory is short.

cd "$(dirname "$0")/.."
program=build/release/gemmule_fails
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0 runs=0
export GEMMULE_BOX= GEMMULE_MODEL= OLLAMA_MODELS=$scratch/store VK_ICD_FILENAMES=/dev/null
mkdir -p "$scratch/store/manifests" "$scratch/store/blobs"

fail() {
    echo "FAILED: $1" >&2
    failures=$((failures + 1))
}

# every N ARGUMENTS: every N-th request fails, in a run of its own.
every() {
    local step=$1 code at count want
    shift
    FAIL_COUNT=1 "$program" "$@" </dev/null >"$scratch/want" 2>"$scratch/err"
    want=$? count=$(tail -n 1 "$scratch/err")
    [ "$count" -gt 10 ] || fail "$*: $count requests"
    for ((at = 0; at < count; at += step)); do
        FAIL_AT=$at "$program" "$@" </dev/null >"$scratch/out" 2>"$scratch/err"
        code=$? runs=$((runs + 1))
        if [ $code = "$want" ] && { [ $code != 0 ] || cmp -s "$scratch/want" "$scratch/out"; }; then continue; fi
        if [ $code = 4 ] && grep -q memory "$scratch/err"; then continue; fi
        fail "$*: request $at of $count: exit code $code: $(head -c 300 "$scratch/err")"
    done
}

every 1 list --json
every 1 inspect box --json --gpu-memory 20M # not taken for too small a budget
every 1 tokenize box "Hello there"
printf '{"prompt": "a", "completion": "b"}\n' >"$scratch/data.jsonl"
every 1 data box "$scratch/data.jsonl" --preview 1 --eval-split 0.5 --json
printf '{"prompt": "a", "completion": "b"}\n{"prompt": "c", "completion": "d"}\n' >"$scratch/two.jsonl"
every 3 train tests/fixtures/tiny-dense.gguf "$scratch/two.jsonl" --backend cpu --threads 1 --rank 2 --epochs 1 --layers 0 --eval-split 0.5 \
    --patience 1 --overwrite --out "$scratch/learned" --quiet
every 1 serve --port 1 --host a.example --host b.example --tls-cert "$scratch/none" --tls-key "$scratch/none"
every 7 run box Hello --backend cpu --threads 1 --temp 0 --max 4 --quiet --stop x --stop y
every 7 chat --backend cpu --threads 1 --quiet
every 1 adapter info tests/fixtures/tiny-dense-adapters/part tests/fixtures/tiny-dense.gguf --json
every 1 adapter convert tests/fixtures/tiny-dense-adapters/head "$scratch/head"
every 1 adapter merge tests/fixtures/tiny-dense.gguf tests/fixtures/tiny-dense-adapters/head "$scratch/merged.gguf" --ollama --quiet

echo "$runs runs, $failures failed"
[ $failures = 0 ]
