#compdef gemmule
# Completion of `gemmule` for zsh. Commands and options are read from the program's own help, names of models from
# `gemmule list`; only the values of a few options are written here.

_gemmule() {
    local program=$words[1] previous=$words[CURRENT-1] help
    local -a candidates

    help=$($program ${words[2]:#-*} --help 2>/dev/null)
    case $((CURRENT - 1)):$previous in
    1:*|*:help)
        candidates=(${(f)"$($program --help 2>/dev/null | sed -n '/^commands:/,/^$/s/^  \([a-z]*\)  *\(.*\)/\1:\2/p')"})
        _describe command candidates
        return ;;
    *:--backend) candidates=(auto cpu gpu) ;;
    *:--kv) candidates=(f16 f32 q8_0) ;;
    *:--cpu) candidates=($($program version 2>/dev/null | sed -n 's/^cpu:\([^;]*\);.*/\1/p' | tr -d ,)) ;;
    *:--quant) candidates=(q4_k_m q4_0 q8_0 f16) ;;
    *:--schedule) candidates=(constant linear cosine) ;;
    *:--loss) candidates=(completions dpo) ;;
    *:--flavour) candidates=(llama.cpp ollama) ;;
    2:synth) candidates=(e2b e4b 12b 26b 31b) ;;
    2:adapter) candidates=(info convert merge diff random) ;;
    *:--type) candidates=(f32 f16 bf16 q8_0 q6_k q5_k q4_k q4_0) ;;
    *)
        if [[ $words[CURRENT] == -* ]]; then
            candidates=(--help $(grep -oE '^  (-[a-z], )?--[a-z0-9-]+|^  -[a-z]' <<<$help | tr , ' '))
        else
            if ! grep -qE -e "^  (-[a-z], )?$previous [A-Z]|^  $previous, [^ ]+ [A-Z]" <<<$help; then
                candidates=(${(f)"$($program list 2>/dev/null | sed -n '2,$s/ .*//p')"})
            fi
            _files
        fi ;;
    esac
    compadd -a candidates
}

_gemmule "$@"
