# Completion of `gemmule` for fish. Commands and options are read from the program's own help, names of models from
# `gemmule list`; only the values of a few options are written here.

function __gemmule_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    set -l previous $words[-1]
    if test (count $words) = 1; or test "$previous" = help
        $program --help 2>/dev/null | sed -n '/^commands:/,/^$/s/^  \([a-z]*\)  *\(.*\)/\1\t\2/p'
        return
    end
    switch (count $words):$previous
        case '*:--backend'
            printf '%s\n' auto cpu gpu
        case '*:--kv'
            printf '%s\n' f16 f32 q8_0
        case '*:--cpu'
            $program version 2>/dev/null | sed -n 's/^cpu: *\([^;]*\);.*/\1/p' | string split ', '
        case '*:--quant'
            printf '%s\n' q4_k_m q4_0 q8_0 f16
        case '*:--schedule'
            printf '%s\n' constant linear cosine
        case '*:--loss'
            printf '%s\n' completions dpo
        case '*:--flavour'
            printf '%s\n' llama.cpp ollama
        case 2:synth
            printf '%s\n' e2b e4b 12b 26b 31b
        case 2:adapter
            printf '%s\n' info convert merge diff random
        case '*:--type'
            printf '%s\n' f32 f16 bf16 q8_0 q6_k q5_k q4_k q4_0
        case '*'
            set -l help ($program $words[2] --help 2>/dev/null)
            if string match -q -- '-*' $current
                echo --help
                printf '%s\n' $help | grep -oE '^  (-[a-z], )?--[a-z0-9-]+|^  -[a-z]' | tr -s ', ' '\n' | string match '-*'
            else
                if not printf '%s\n' $help | grep -qE -e "^  (-[a-z], )?$previous [A-Z]|^  $previous, [^ ]+ [A-Z]"
                    $program list 2>/dev/null | sed -n '2,$s/ .*//p'
                end
                __fish_complete_path $current
            end
    end
end

complete -c gemmule -f -a '(__gemmule_complete)'
