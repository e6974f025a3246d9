#!/usr/bin/env bash
# Everything that runs on the machine with the GPU, one command a chunk. What is to be carried there: build/box-kit.tar.xz (pack_kit.sh makes it), and
# for a resume build/box-in with the files that the last chunk left.
#
#   tools/box/run_device.sh smoke                          a minute: is everything there, and does it agree with transformers?
#   tools/box/run_device.sh train SECONDS STEPS [OPTIONS]  a chunk of training; goes on from build/box-in if a checkpoint lies there, else from
#                                                          scratch, or with --begin FILE.gguf from an exported model
#   tools/box/run_device.sh finish DRAFT_SECONDS           exports and scores the checkpoint in build/box-in, trains the drafter
#   tools/box/run_device.sh last SECONDS STEPS DRAFT_SECONDS   the last chunk and `finish` in one
#
# Results go to $OUT (or build/box-out): a chunk's checkpoint is 27 MB in files below 16.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=$PWD/build/box-kit in=build/box-in out=${OUT:-build/box-out}
mkdir -p "$out"
export PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
if [ ! -d "$kit" ] && [ -f "$kit.tar.xz" ]; then tar -xJf "$kit.tar.xz" -C build; fi
if [ -d "$kit" ]; then
    export ESPEAK_LIBRARY=$kit/lib/libespeak-ng.so.1 ESPEAK_DATA_PATH=$kit FONT_FOLDER=$kit/fonts LD_LIBRARY_PATH=$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
# Compiled kernels, which take more than a minute to make: kept from chunk to chunk.
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$PWD/build/box-compiled}
if [ ! -d "$TORCHINDUCTOR_CACHE_DIR" ] && [ -f "$in/compiled.tar.xz" ]; then tar -xJf "$in/compiled.tar.xz" -C build; fi

resumed() { if [ -f "$in/checkpoint-0.npz" ]; then printf '%s\n' --resume "$in"; fi; }
train() { # OUT SECONDS STEPS [OPTIONS]
    mapfile -t resume < <(resumed)
    python3 tools/box/train.py --out "$1" --seconds "$2" --steps "$3" "${resume[@]}" "${@:4}"
}
finish() { # DRAFT_SECONDS
    [ -n "$(resumed)" ] || { echo "there is no checkpoint in $in" >&2 && exit 2; }
    python3 tools/box/train.py --out "$out" --finish --resume "$in"
    python3 tools/box/draft.py --target "$out/box.gguf" --out "$out" --seconds "$1" --steps 6000
}

case ${1:-} in
smoke)
    python3 tools/box/train.py --smoke --out "$out" "${@:2}"
    rm -f "$out"/checkpoint-*.npz
    ;;
train)
    train "$out" "${@:2}"
    if [ ! -f "$in/compiled.tar.xz" ] && [ -d build/box-compiled ]; then tar -cJf "$out/compiled.tar.xz" -C build box-compiled; fi
    ;;
finish) finish "${2:-120}" ;;
last)
    train "$in" "$2" "$3" --most 0 "${@:5}"
    cp "$in/scores.json" "$out/training.json"
    finish "$4"
    ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2 && exit 3 ;;
esac
ls -l "$out"
