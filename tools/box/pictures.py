"""Pictures and how the vision tower is given them.

`preprocess` is Gemma 4's way: resize to the token budget with the fixed-point bicubic filter of torchvision's 8-bit path, cut into patches of
16 × 16. Every pixel is exact. Drawing needs Pillow, and fonts for numbers: FONT_FOLDER (or Debian's own places).
"""

import functools
import io
import math
import os

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

import captions
from turn import aside

PATCH, POOL = 16, 3
SIDE = PATCH * POOL

# ---- preprocessing ---------------------------------------------------------------------------------------------------


def target_size(width, height, budget=70):
    """The size that a picture is resized to: at most `budget` squares of 48 × 48, as near to its aspect as whole squares allow."""
    f = math.sqrt(9 * budget * PATCH * PATCH / (height * width))
    h, w = math.floor(f * height / SIDE) * SIDE, math.floor(f * width / SIDE) * SIDE
    if not h and not w:
        raise ValueError(f"a picture of {width} × {height} is too small")
    if not h:
        h, w = SIDE, min(width // height * SIDE, budget * SIDE)
    elif not w:
        w, h = SIDE, min(height // width * SIDE, budget * SIDE)
    return w, h


def cubic(t):
    t = np.abs(t)
    return np.where(t < 1, 1.5 * t**3 - 2.5 * t * t + 1, np.where(t < 2, -0.5 * t**3 + 2.5 * t * t - 4 * t + 2, 0.0))


@functools.lru_cache(maxsize=4096)
def filter_of(size_in, size_out):
    """The filter of one axis: which inputs each output reads, their weights as integers [taps, outputs], and how many bits these are scaled by."""
    scale = size_in / size_out
    wide = max(1.0, scale)
    taps = math.ceil(4 * wide) + 1
    places, weights = np.zeros((taps, size_out), np.int64), np.zeros((taps, size_out))
    for i in range(size_out):
        centre = (i + 0.5) * scale
        low, high = max(0, math.floor(centre - 2 * wide + 0.5)), min(size_in, math.floor(centre + 2 * wide + 0.5))
        w = cubic((np.arange(low, high) + 0.5 - centre) / wide)
        places[:, i] = low
        places[:high - low, i] = np.arange(low, high)
        weights[:high - low, i] = w / w.sum()
    bits, largest = 0, weights.max()
    while bits < 22 and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    scaled = weights * (1 << bits)
    integers = np.where(scaled < 0, np.ceil(scaled - 0.5), np.floor(scaled + 0.5)).astype(np.int32)
    return places, integers, bits


def resize_axis(image, size, axis):
    if image.shape[axis] == size:
        return image
    places, weights, bits = filter_of(image.shape[axis], size)
    shape = [1, 1, 1]
    shape[axis] = size
    sums = np.int32(1 << (bits - 1))
    for place, weight in zip(places, weights):
        if weight.any():
            sums = sums + image.take(place, axis).astype(np.int32) * weight.reshape(shape)
    return np.clip(sums >> bits, 0, 255).astype(np.uint8)


def resize(image, width, height):
    """uint8 [h, w, 3] → [height, width, 3]: first along the rows, then along the columns, 8 bits in between."""
    return resize_axis(resize_axis(image, width, 1), height, 0)


def patches_of(image):
    """uint8 patches [n, 768] with the channel fastest, and their places (x, y)."""
    h, w = image.shape[0] // PATCH, image.shape[1] // PATCH
    patches = image.reshape(h, PATCH, w, PATCH, 3).transpose(0, 2, 1, 3, 4).reshape(h * w, PATCH * PATCH * 3)
    places = np.stack(np.meshgrid(np.arange(w), np.arange(h)), -1).reshape(-1, 2)
    return np.ascontiguousarray(patches), places


def preprocess(image, budget=70):
    """A picture as the tower's input: uint8 patches (the tower divides by 255), places, and the number of soft tokens."""
    pixels = np.asarray(image.convert("RGB")) if isinstance(image, Image.Image) else image
    width, height = target_size(pixels.shape[1], pixels.shape[0], budget)
    patches, places = patches_of(resize(pixels, width, height))
    return patches, places, len(patches) // (POOL * POOL)


# ---- drawing ---------------------------------------------------------------------------------------------------------

PAINT = {"red": (215, 30, 35), "blue": (35, 70, 215), "green": (30, 150, 50), "yellow": (245, 220, 40), "black": (15, 15, 15),
         "white": (245, 245, 245),
         "orange": (245, 135, 20), "purple": (135, 40, 160), "grey": (150, 150, 150), "pink": (250, 185, 205), "brown": (115, 70, 35)}


def shade(r, colour, amount=18):
    return tuple(max(0, min(255, c + r.randrange(-amount, amount + 1))) for c in PAINT[colour])


def polygon(kind, x, y, radius, turn):
    if kind == "square":
        corners = [(math.pi / 4 + k * math.pi / 2, 1.2) for k in range(4)]
    elif kind == "triangle":
        corners = [(-math.pi / 2 + k * 2 * math.pi / 3, 1.2) for k in range(3)]
    elif kind == "star":
        corners = [(-math.pi / 2 + k * math.pi / 5, 1.25 if k % 2 == 0 else 0.5) for k in range(10)]
    else:  # a cross: an arm is 0.7 wide
        a, b = 0.35, 1.1
        points = [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a), (-b, -a), (-a, -a)]
        corners = [(math.atan2(v, u), math.hypot(u, v)) for u, v in points]
    return [(x + radius * f * math.cos(t + turn), y + radius * f * math.sin(t + turn)) for t, f in corners]


def draw_scene(r, what):
    width = r.choice([160, 192, 224, 256, 320, 384])
    height = min(420, max(140, int(width * r.choice([0.75, 1.0, 1.0, 1.33]))))
    image = Image.new("RGB", (2 * width, 2 * height), shade(r, what["background"], 10))
    pen = ImageDraw.Draw(image)
    for s in what["shapes"]:
        column, row = captions.PLACES.index(s["place"]) % 3, captions.PLACES.index(s["place"]) // 3
        radius = min(width, height) * (r.uniform(0.06, 0.085) if s["size"] == "small" else r.uniform(0.125, 0.155))
        x, y = width * (column + 0.5) / 3 + r.uniform(-0.04, 0.04) * width, height * (row + 0.5) / 3 + r.uniform(-0.04, 0.04) * height
        paint = shade(r, s["colour"])
        if s["shape"] == "circle":
            pen.ellipse([2 * (x - radius), 2 * (y - radius), 2 * (x + radius), 2 * (y + radius)], fill=paint)
        else:
            turn = r.uniform(-0.2, 0.2)
            pen.polygon([(2 * px, 2 * py) for px, py in polygon(s["shape"], x, y, radius, turn)], fill=paint)
    return image.resize((width, height), Image.BILINEAR)  # drawn at twice the size: smooth edges


FONTS = {  # Debian's files; the second list is for the held-out set alone
    False: """DejaVuSans.ttf DejaVuSans-Bold.ttf DejaVuSerif.ttf DejaVuSerif-Bold.ttf DejaVuSansMono.ttf DejaVuSansMono-Bold.ttf
    DejaVuSansCondensed.ttf LiberationSans-Regular.ttf LiberationSans-Italic.ttf LiberationSerif-Regular.ttf
    LiberationSerif-Bold.ttf LiberationMono-Regular.ttf FreeSans.ttf FreeSansBold.ttf FreeSerif.ttf FreeSerifItalic.ttf
    FreeMono.ttf FreeMonoBold.ttf C059-Roman.otf NimbusSansNarrow-Bold.otf URWGothic-Book.otf P052-Roman.otf
    URWBookman-Light.otf Carlito-Regular.ttf Carlito-Bold.ttf Inconsolata.otf OpenSans-Regular.ttf OpenSans-CondBold.ttf
    LinLibertine_R.otf LinBiolinum_R.otf""".split(),
    True: """Lato-Regular.ttf Lato-Bold.ttf Caladea-Regular.ttf Caladea-Bold.ttf Cantarell-Regular.otf Hack-Regular.ttf Roboto-Regular.ttf
    Roboto-Medium.ttf""".split(),
}


@functools.lru_cache(maxsize=1)
def font_files():
    """name → path, of every font there is."""
    found = {}
    for root in (os.environ.get("FONT_FOLDER"), "/usr/share/fonts"):
        for folder, _, names in os.walk(root or ""):
            for name in sorted(names):
                found.setdefault(name, os.path.join(folder, name))
    return found


@functools.lru_cache(maxsize=2)
def fonts(held):
    there = [font_files()[name] for name in FONTS[held] if name in font_files()]
    if len(there) < len(FONTS[held]):
        missing = ", ".join(n for n in FONTS[held] if n not in font_files())
        raise SystemExit(f"fonts are missing: {missing} (tools/setup.sh box installs them)")
    return there


@functools.lru_cache(maxsize=512)
def font(path, size):
    return ImageFont.truetype(path, size)


def draw_number(r, digits, held):
    width, height = r.choice([192, 224, 256, 320]), r.choice([96, 128, 160, 192, 224])
    dark = r.random() < 0.3
    ground, ink = (r.randrange(170, 256), r.randrange(0, 90)) if not dark else (r.randrange(0, 70), r.randrange(170, 256))
    tint = lambda base, by: tuple(max(0, min(255, base + r.randrange(-by, by + 1))) for _ in range(3))
    image = Image.new("RGB", (width, height), tint(ground, 20))
    face = font(r.choice(fonts(held)), int(min(height * r.uniform(0.45, 0.8), width / len(digits) * r.uniform(0.95, 1.4))))
    box = face.getbbox(digits)
    w, h = box[2] - box[0], box[3] - box[1]
    x, y = r.uniform(2, max(3, width - w - 2)) - box[0], r.uniform(2, max(3, height - h - 2)) - box[1]
    ImageDraw.Draw(image).text((x, y), digits, font=face, fill=tint(ink, 25))
    if r.random() < 0.4:
        image = image.rotate(r.uniform(-6, 6), Image.BILINEAR, fillcolor=image.getpixel((1, 1)))
    return image


def spoil(r, image):
    """What real files have: a bit of noise or blur, and the traces of PNG (none) and JPEG."""
    if r.random() < 0.2:
        image = image.filter(ImageFilter.GaussianBlur(r.uniform(0.3, 1.0)))
    if r.random() < 0.3:
        noise = np.random.default_rng(r.getrandbits(32)).normal(0, r.uniform(1, 9), (image.height, image.width, 1))
        image = Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))
    if r.random() < 0.5:
        data = io.BytesIO()
        image.save(data, "JPEG", quality=r.randrange(45, 96))
        image = Image.open(io.BytesIO(data.getvalue())).convert("RGB")
    return image


def scene_aside(what):
    """The held-out set has its own combinations of shapes."""
    return aside(str([sorted(s.items()) for s in what["shapes"]]), 5)


def picture_sample(r, held=False, easy=0.0):
    """A sample with its picture in "image" (Pillow)."""
    if r.random() < 0.55:
        what = captions.scene(r, easy)
        while scene_aside(what) != held:
            what = captions.scene(r, easy)
        sample = captions.sample_of("image", *captions.about_scene(r, what), "shapes", captions.scene_marks(what))
        sample["image"] = spoil(r, draw_scene(r, what))
    else:
        digits = captions.written_number(r, easy)
        sample = captions.sample_of("image", *captions.about_number(r, digits), "numbers read", digits)
        sample["image"] = spoil(r, draw_number(r, digits, held))
    return captions.thoughtful(r, sample)

