#!/usr/bin/env bash
# Compares two builds: runs them in turn, so that a machine that slows down slows both, and prints the medians of the ratios of all pairs.
#
#   bench/pairs.sh PAIRS OLD NEW MODEL [OPTION…]      options of `gemmule bench`, e.g. --backend gpu -p 512 -n 128
#
# OLD and NEW are programs, or "FOLDER/run.sh gemmule" of a folder made by tools/pack.sh. Every second pair begins with NEW.
set -euo pipefail
[ $# -ge 4 ] || { sed -n '4s/^# *//p' "$0" >&2 && exit 3; }
pairs=$1 old=$2 new=$3 model=$4
shift 4

# speeds PROGRAM OPTION…: prefill and decode, tokens a second.
speeds() {
    local program=$1
    shift
    # shellcheck disable=SC2086 # a program may be two words
    $program bench "$model" "$@" -r 1 --json 2>/dev/null | sed -E 's/.*"prefill":\{[^}]*"tokens_per_second":([0-9.e+]+).*"decode":\{[^}]*"tokens_per_second":([0-9.e+]+).*/\1 \2/'
}
median() { sort -g | awk '{ a[NR] = $1 } END { print NR % 2 ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2 }'; }

results=$(mktemp)
trap 'rm -f "$results"' EXIT
for ((i = 0; i < pairs; i++)); do
    if ((i % 2)); then after=$(speeds "$new" "$@") before=$(speeds "$old" "$@"); else before=$(speeds "$old" "$@") after=$(speeds "$new" "$@"); fi
    echo "$before $after" | tee -a "$results" | awk '{ printf "prefill %.1f → %.1f  decode %.2f → %.2f\n", $1, $3, $2, $4 }'
done
column() { awk "{ print $1 }" "$results" | median; }
printf '%d pairs, medians: prefill %.4g → %.4g tokens/s, ratio %.3f; decode %.4g → %.4g, ratio %.3f\n' "$pairs" \
    "$(column '$1')" "$(column '$3')" "$(column '$3 / $1')" "$(column '$2')" "$(column '$4')" "$(column '$4 / $2')"
