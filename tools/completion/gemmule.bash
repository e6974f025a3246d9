# Completion of `gemmule` for bash. Commands and options are read from the program's own help, names of models from
# `gemmule list`; only the values of a few options are written here.

_gemmule() {
    local typed=${COMP_LINE:0:COMP_POINT} program=${COMP_WORDS[0]} current previous candidates
    local -a words
    read -ra words <<<"$typed"
    current=${typed##* } # not COMP_WORDS, which splits gemma4:e2b at the colon
    [ -n "$current" ] && unset 'words[-1]'
    previous=${words[-1]}

    COMPREPLY=()
    case ${#words[@]}:$previous in
    1:* | *:help) candidates=$("$program" --help 2>/dev/null | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p') ;;
    *:--backend) candidates="auto cpu gpu" ;;
    *:--kv) candidates="f16 f32 q8_0" ;;
    *:--cpu) candidates=$("$program" version 2>/dev/null | sed -n 's/^cpu:\([^;]*\);.*/\1/p' | tr -d ,) ;;
    *:--quant) candidates="q4_k_m q4_0 q8_0 f16" ;;
    *:--schedule) candidates="constant linear cosine" ;;
    *:--loss) candidates="completions dpo" ;;
    *:--flavour) candidates="llama.cpp ollama" ;;
    2:synth) candidates="e2b e4b 12b 26b 31b" ;;
    2:adapter) candidates="info convert merge diff random" ;;
    *:--type) candidates="f32 f16 bf16 q8_0 q6_k q5_k q4_k q4_0" ;;
    *)
        if [[ $current == -* ]]; then
            candidates="--help $("$program" "${words[1]}" --help 2>/dev/null | grep -oE '^  (-[a-z], )?--[a-z0-9-]+|^  -[a-z]' | tr , ' ')"
        elif ! "$program" "${words[1]}" --help 2>/dev/null | grep -qE -e "^  (-[a-z], )?$previous [A-Z]|^  $previous, [^ ]+ [A-Z]"; then
            candidates=$("$program" list 2>/dev/null | sed -n '2,$s/ .*//p') # and files, by `-o default`
        fi
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "$current")
    case $current in *:*) COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*:}"}"}") ;; esac
}

complete -o bashdefault -o default -F _gemmule gemmule
