"""Writes tests/fixtures/pictures: small pictures of every kind, and pictures.txt with what Pillow makes of them.

    /usr/bin/python3 tests/make_pictures.py        (python3-pil, python3-numpy; made with Pillow 9.4 on Debian 12)

A line of pictures.txt is: file, width, height, SHA-256 of the RGB bytes after exif_transpose and convert('RGB'). A line of
resized.txt is: file, budget, width, height, SHA-256 of the picture resized by gemma4.md 4.1, computed here with numpy.
"""
import hashlib, io, os, struct, zlib
import numpy as np
from PIL import Image, ImageOps

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'fixtures/pictures')
rng = np.random.default_rng(4)
lines = []


def note(name, data, pixels=None):
    """Writes a file; pixels: the expectation where we differ from Pillow."""
    with open(os.path.join(FOLDER, name), 'wb') as file: file.write(data)
    if pixels is None: pixels = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert('RGB'))
    lines.append('%s %d %d %s' % (name, pixels.shape[1], pixels.shape[0], hashlib.sha256(pixels.tobytes()).hexdigest()))


# ---- PNG: Pillow does not write all of them ----

def chunk(name, data): return struct.pack('>I', len(data)) + name + data + struct.pack('>I', zlib.crc32(name + data))


def filtered(row, above, kind, left):
    row, above = row.astype(int), above.astype(int)
    a = np.concatenate([np.zeros(left, int), row])[:len(row)]
    c = np.concatenate([np.zeros(left, int), above])[:len(row)]
    p = a + above - c
    pa, pb, pc = abs(p - a), abs(p - above), abs(p - c)
    paeth = np.where((pa <= pb) & (pa <= pc), a, np.where(pb <= pc, above, c))
    return ((row - [0, a, above, (a + above) // 2, paeth][kind]) & 255).astype(np.uint8)


def packed(samples, depth):
    """Rows of samples as bytes."""
    if depth == 16: return samples.astype('>u2').tobytes()
    bits = np.unpackbits(samples.astype(np.uint8)[..., None], axis=-1)[..., 8 - depth:]
    return np.packbits(bits.reshape(-1)).tobytes()


ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def png(image, colour, depth, interlaced=False, palette=None, before=b'', pieces=1, level=9):
    h, w = image.shape[:2]
    left, raw, filter_kind = max(1, SAMPLES[colour] * depth // 8), b'', 0
    for x, y, dx, dy in ADAM7 if interlaced else [(0, 0, 1, 1)]:
        part = image[y::dy, x::dx]
        if not part.size: continue
        above = None
        for row in part:
            line = np.frombuffer(packed(row.reshape(-1), depth), np.uint8)
            above = np.zeros_like(line) if above is None else above
            raw += bytes([filter_kind % 5]) + filtered(line, above, filter_kind % 5, left).tobytes()
            above, filter_kind = line, filter_kind + 1
    packed_data = zlib.compress(raw, level)
    cuts = [len(packed_data) * i // pieces for i in range(pieces + 1)]
    idat = b''.join(chunk(b'IDAT', packed_data[a:b]) for a, b in zip(cuts, cuts[1:]))
    head = chunk(b'IHDR', struct.pack('>IIBBBBB', w, h, depth, colour, 0, 0, int(interlaced)))
    table = chunk(b'PLTE', palette) if palette is not None else b''
    return b'\x89PNG\r\n\x1a\n' + head + table + before + idat + chunk(b'IEND', b'')


def picture(h, w, n, most):
    """Smooth with some noise, so that all filters and long matches occur."""
    y, x = np.mgrid[0:h, 0:w]
    planes = [(x * (3 + c) + y * (7 - c) + rng.integers(0, 3, (h, w))) * most // (11 * max(h, w)) % (most + 1) for c in range(n)]
    return np.stack(planes, -1)


for colour, depths in {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}.items():
    for depth in depths:
        for interlaced in (False, True):
            image = picture(19, 27, SAMPLES[colour], (1 << depth) - 1)
            palette = rng.integers(0, 256, 3 << min(depth, 8), np.uint8).tobytes() if colour == 3 else None
            pixels = None
            if colour == 0 and depth == 16: pixels = np.repeat((image >> 8).astype(np.uint8), 3, -1)  # Pillow cuts off above 255
            note('png-%d-%d%s.png' % (colour, depth, '-interlaced' if interlaced else ''), png(image, colour, depth, interlaced, palette), pixels)

for w, h in (1, 1), (3, 2), (5, 5), (9, 1), (1, 9): # passes without pixels
    note('png-%dx%d-interlaced.png' % (w, h), png(picture(h, w, 3, 255), 2, 8, True))
note('png-transparent.png', png(picture(12, 14, 1, 3), 3, 2, False, bytes(range(12)), chunk(b'tRNS', b'\0\x80\xff')))
note('png-transparent-colour.png', png(picture(12, 14, 3, 255), 2, 8, False, None, chunk(b'tRNS', bytes(6))))
note('png-short-palette.png', png(picture(12, 14, 1, 255), 3, 8, False, bytes(range(90))))
note('png-pieces.png', png(picture(40, 40, 3, 255), 2, 8, pieces=9))
note('png-stored.png', png(picture(30, 50, 3, 255), 2, 8, level=0))
note('png-noise.png', png(rng.integers(0, 256, (20, 20, 3)), 2, 8))
note('png-long.png', png((np.mgrid[0:600, 0:700].sum(0)[..., None] // 40 * np.array([3, 5, 7])) % 256, 2, 8))
exif = Image.Exif()
exif[0x112] = 6
note('png-turned.png', png(picture(11, 17, 3, 255), 2, 8, before=chunk(b'eXIf', exif.tobytes()[6:])))

# ---- GIF ----

def lzw(indices, bits):
    """Without a dictionary: a clear code before the codes would grow."""
    clear, out, pending, count = 1 << bits, [], 0, 0
    def put(code):
        nonlocal pending, count
        pending |= code << count
        count += bits + 1
        while count >= 8: out.append(pending & 255); pending >>= 8; count -= 8
    for i, value in enumerate(indices):
        if i % (clear - 2) == 0: put(clear)
        put(int(value))
    put(clear + 1)
    if count: out.append(pending & 255)
    data = bytes(out)
    return bytes([bits]) + b''.join(bytes([len(data[i:i + 255])]) + data[i:i + 255] for i in range(0, len(data), 255)) + b'\0'


def gif(screen, frame, at, table, local=None, transparent=None, interlaced=False, bits=4):
    h, w = frame.shape
    head = b'GIF89a' + struct.pack('<HHBBB', *screen, 0x80 | bits - 1 if table else 0, 3, 0) + (table or b'')
    if transparent is not None: head += b'!\xf9\x04' + struct.pack('<BHB', 1, 0, transparent) + b'\0'
    head += b'!\xfe\x05hello\0'
    rows = [y for first, step in ((0, 8), (4, 8), (2, 4), (1, 2)) for y in range(first, h, step)] if interlaced else range(h)
    flags = (64 if interlaced else 0) | (0x80 | bits - 1 if local else 0)
    return head + b',' + struct.pack('<HHHHB', *at, w, h, flags) + (local or b'') + lzw(frame[list(rows)].reshape(-1), bits) + b';'


colours = rng.integers(0, 256, 48, np.uint8).tobytes()
others = rng.integers(0, 256, 48, np.uint8).tobytes()
frame = picture(13, 17, 1, 15)[..., 0]
note('gif-plain.gif', gif((17, 13), frame, (0, 0), colours))
note('gif-interlaced.gif', gif((17, 13), frame, (0, 0), colours, interlaced=True))
note('gif-local.gif', gif((17, 13), frame, (0, 0), colours, others))
note('gif-inside.gif', gif((30, 20), frame, (5, 4), colours))
note('gif-transparent.gif', gif((30, 20), frame, (5, 4), colours, transparent=7))
note('gif-beyond.gif', gif((10, 10), frame, (5, 4), colours))
note('gif-no-palette.gif', gif((17, 13), frame, (0, 0), None))


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


photo = Image.fromarray(picture(45, 61, 3, 255).astype(np.uint8))
note('gif-long-codes.gif', saved(Image.fromarray(rng.integers(0, 256, (90, 90), np.uint8)), 'GIF'))
note('gif-animated.gif', saved(photo.quantize(64), 'GIF', save_all=True, append_images=[photo.rotate(180).quantize(64)]))

# ---- JPEG and WebP ----

grey = photo.convert('L')
note('jpeg-colour.jpg', saved(photo, 'JPEG', quality=80))
note('jpeg-444.jpg', saved(photo, 'JPEG', quality=90, subsampling=0))
note('jpeg-422.jpg', saved(photo, 'JPEG', quality=90, subsampling=1))
note('jpeg-progressive.jpg', saved(photo, 'JPEG', quality=75, progressive=True))
note('jpeg-grey.jpg', saved(grey, 'JPEG', quality=80))
note('jpeg-cmyk.jpg', saved(photo.convert('CMYK'), 'JPEG', quality=90))
for turn in range(1, 9):
    exif[0x112] = turn
    note('jpeg-turned-%d.jpg' % turn, saved(photo.resize((22, 17)), 'JPEG', quality=70, exif=exif.tobytes()))
alpha = photo.convert('RGBA')
alpha.putalpha(grey)
note('webp-lossy.webp', saved(photo, 'WEBP', quality=70))
note('webp-lossless.webp', saved(photo.resize((30, 20)), 'WEBP', lossless=True))
note('webp-alpha.webp', saved(alpha, 'WEBP', quality=70))
note('webp-exact.webp', saved(alpha.resize((30, 20)), 'WEBP', lossless=True, exact=True))
exif[0x112] = 8
note('webp-turned.webp', saved(photo.resize((30, 20)), 'WEBP', quality=70, exif=exif.tobytes()))
note('webp-animated.webp', saved(photo, 'WEBP', quality=70, save_all=True, append_images=[photo.rotate(180)]))

# ---- resizing ----

def cubic(t):
    t = np.abs(t)
    return np.where(t < 1, 1.5 * t**3 - 2.5 * t**2 + 1, np.where(t < 2, -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2, 0))


def resized(image, n):
    """Along the first axis."""
    scale = len(image) / n
    if scale == 1: return image
    stretch, at = max(1, scale), np.arange(len(image))
    rows = []
    for i in range(n):
        centre = (i + 0.5) * scale
        inside = (at >= np.floor(centre - 2 * stretch + 0.5)) & (at < np.floor(centre + 2 * stretch + 0.5))
        weights = np.where(inside, cubic((at + 0.5 - centre) / stretch), 0)
        rows.append(weights / weights.sum())
    rows = np.array(rows)
    bits = max(p for p in range(23) if np.floor(0.5 + rows.max() * 2.0**p) < 2**15)
    whole = (np.sign(rows) * np.floor(np.abs(rows) * 2.0**bits + 0.5)).astype(np.int64)
    return np.clip((np.tensordot(whole, image.astype(np.int64), 1) + (1 << bits - 1)) >> bits, 0, 255).astype(np.uint8)


def fit(w, h, budget):
    f = (budget * 48 * 48 / (h * w)) ** 0.5
    tw, th = int(f * w / 48) * 48, int(f * h / 48) * 48
    if not th: th, tw = 48, min(w // h, budget) * 48
    elif not tw: tw, th = 48, min(h // w, budget) * 48
    return tw, th


sizes = []
for name, budgets in {'png-2-8.png': (70, 140, 280, 560, 1120), 'png-9x1-interlaced.png': (70,), 'png-1x9-interlaced.png': (140,),
                      'png-long.png': (70, 280), 'jpeg-444.jpg': (280,), 'gif-long-codes.gif': (70,)}.items():
    image = np.asarray(Image.open(os.path.join(FOLDER, name)).convert('RGB'))
    for budget in budgets:
        tw, th = fit(image.shape[1], image.shape[0], budget)
        out = resized(resized(image.swapaxes(0, 1), tw).swapaxes(0, 1), th)
        sizes.append('%s %d %d %d %s' % (name, budget, tw, th, hashlib.sha256(out.tobytes()).hexdigest()))
with open(os.path.join(FOLDER, 'resized.txt'), 'w') as file: file.write('\n'.join(sizes) + '\n')
with open(os.path.join(FOLDER, 'pictures.txt'), 'w') as file: file.write('\n'.join(lines) + '\n')
