#!/usr/bin/env bash
# Puts what data is made with into build/box-kit.tar.xz, to be carried to a machine that has no packages: espeak-ng with its English data, and fonts.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools/setup.sh box
kit=build/box-kit
rm -rf "$kit"
mkdir -p "$kit/lib" "$kit/fonts"

# The library wants another one to play sound, which wants half a desktop. Nothing is played: a stub will do.
libraries=$(dirname "$(ldconfig -p | sed -n 's/.*libespeak-ng\.so\.1 .*=> //p' | head -n 1)")
cp -L "$libraries/libespeak-ng.so.1" "$libraries/libsonic.so.0" "$kit/lib/"
cc -shared -fPIC -O1 -Wl,-soname,libpcaudio.so.0 -o "$kit/lib/libpcaudio.so.0" -xc - <<'STUB'
void *create_audio_device_object(const char *a, const char *b, const char *c) { (void)a, (void)b, (void)c; return 0; }
int   audio_object_open(void *o, int f, unsigned r, unsigned char c) { (void)o, (void)f, (void)r, (void)c; return -1; }
void  audio_object_close(void *o) { (void)o; }
void  audio_object_destroy(void *o) { (void)o; }
int   audio_object_drain(void *o) { (void)o; return 0; }
int   audio_object_flush(void *o) { (void)o; return 0; }
int   audio_object_write(void *o, const void *d, unsigned long n) { (void)o, (void)d, (void)n; return 0; }
const char *audio_object_strerror(void *o, int e) { (void)o, (void)e; return "no sound"; }
STUB
data=$(dirname "$(dpkg -L espeak-ng-data | grep -m 1 '/phontab$')")
mkdir -p "$kit/espeak-ng-data/lang"
cp "$data"/phon* "$data/intonations" "$data/en_dict" "$kit/espeak-ng-data/"
cp -r "$data/voices" "$kit/espeak-ng-data/"
cp -r "$data/lang/gmw" "$kit/espeak-ng-data/lang/"

/usr/bin/python3 - "$kit/fonts" <<'PY'
import shutil, sys
sys.path.insert(0, "tools/box")
import pictures
for held in (False, True):
    for path in pictures.fonts(held):
        shutil.copy(path, sys.argv[1])
PY
tar -cJf "$kit.tar.xz" -C build box-kit
ls -l "$kit.tar.xz"
