"""Writes tests/fixtures/sounds: a short tone in every format that libsndfile writes, for the browsers' decoders and our header parser.

    /usr/bin/python3 tests/make_sounds.py        (libsndfile1; made with 1.2.0 on Debian 12)

Each file is 0.3 s of 440 Hz with an amplitude of 0.5, at the rate in its name.
"""
import ctypes, math, os

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'fixtures/sounds')
library = ctypes.CDLL('libsndfile.so.1')
library.sf_open.restype = ctypes.c_void_p
library.sf_writef_float.restype = ctypes.c_int64
library.sf_strerror.restype = ctypes.c_char_p


class Info(ctypes.Structure):
    _fields_ = [('frames', ctypes.c_int64), ('rate', ctypes.c_int), ('channels', ctypes.c_int), ('format', ctypes.c_int),
                ('sections', ctypes.c_int), ('seekable', ctypes.c_int)]


def write(name, rate, channels, kind):
    samples = [0.5 * math.sin(2 * math.pi * 440 * i / rate) for i in range(3 * rate // 10) for _ in range(channels)]
    info = Info(0, rate, channels, kind, 0, 0)
    file = library.sf_open(os.path.join(FOLDER, name).encode(), 0x20, ctypes.byref(info))
    assert file, library.sf_strerror(None)
    library.sf_writef_float(ctypes.c_void_p(file), (ctypes.c_float * len(samples))(*samples), ctypes.c_int64(len(samples) // channels))
    library.sf_close(ctypes.c_void_p(file))


os.makedirs(FOLDER, exist_ok=True)
write('tone-22050.mp3', 22050, 1, 0x230000 | 0x0082)  # MPEG, layer III
write('tone-44100-stereo.mp3', 44100, 2, 0x230000 | 0x0082)
write('tone-32000.flac', 32000, 2, 0x170000 | 0x0002)
write('tone-16000.ogg', 16000, 1, 0x200000 | 0x0060)  # Vorbis
write('tone-48000.opus', 48000, 1, 0x200000 | 0x0064)
write('tone-8000.wav', 8000, 1, 0x010000 | 0x0002)
