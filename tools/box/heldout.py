"""Writes the held-out set, tests/box: cases that training never sees, with other seeds, voices and fonts.

    python3 tools/box/heldout.py                                                  tests/box
    python3 tools/box/heldout.py --folder build/box-more --seed more --times 6    others, and more of them, for steadier scores

The files of tests/box are committed, so it is written again only when the tasks change. What is on the held-out side is decided in turn.py, pictures.py and sounds.py.
"""

import argparse
import json
import os
import random

import captions
import pictures
import sounds
import tasks

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "box")
COUNTS = {"arithmetic": 100, "tools": 60, "tool results": 40, "json": 30, "story": 20, "modesty": 24}
OTHERS = 24
SHAPES, NUMBERS, DIGITS, WORDS, TONES = 40, 40, 16, 16, 8


def lines(folder, name, samples):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        for s in samples:
            f.write(json.dumps({k: v for k, v in s.items() if k not in ("answer", "marks") and v not in (False, [])}, ensure_ascii=False) + "\n")


def distinct(make, count):
    seen, out = set(), []
    for _ in range(200 * count):  # some tasks have fewer held-out cases than asked for
        s = make()
        key = json.dumps([s["messages"], s.get("tools"), s["think"]])
        if key not in seen:
            seen.add(key)
            out.append(s)
            if len(out) == count:
                break
    return out


def text_set(seed, times):
    r, out = random.Random(f"held out{seed}"), []
    for name in tasks.TASKS:
        out += distinct(lambda: tasks.make_sample(name, r, True), COUNTS.get(name, OTHERS) * times)
    return out


def save_picture(folder, r, image, name):
    """Half of them as PNG, half as JPEG: what a decoder makes of the file is what is seen."""
    kind = r.choice(["png", "jpg"])
    path = f"pictures/{name}.{kind}"
    if kind == "png":
        image.quantize(64, dither=0).save(os.path.join(folder, path),
                                          optimize=True) if r.random() < 0.3 else image.save(os.path.join(folder, path), optimize=True)
    else:
        image.save(os.path.join(folder, path), quality=r.randrange(50, 90))
    return path


def picture_set(folder, seed, times):
    r, out = random.Random(f"held out pictures{seed}"), []
    for i in range((SHAPES + NUMBERS) * times):
        if i < SHAPES * times:
            what = captions.scene(r)
            while not pictures.scene_aside(what):
                what = captions.scene(r)
            sample, image = captions.sample_of("image", *captions.about_scene(r, what), "shapes"), pictures.draw_scene(r, what)
        else:
            digits = captions.written_number(r)
            sample, image = captions.sample_of("image", *captions.about_number(r, digits), "numbers read"), pictures.draw_number(r, digits, True)
        sample["image"] = save_picture(folder, r, image, f"{i:02}")
        out.append(sample)
    return out


def sound_set(folder, seed, times):
    r, out, wanted = random.Random(f"held out sounds{seed}"), [], {"spoken digits": DIGITS * times, "spoken words": WORDS * times, "tones": TONES * times}
    while any(wanted.values()):
        sample = sounds.sound_sample(r, True)
        if not wanted[sample["task"]]:
            continue
        wanted[sample["task"]] -= 1
        path = f"sounds/{len(out):02}.wav"
        sounds.write_wav(os.path.join(folder, path), sample["audio"])
        sample["audio"] = path
        out.append(sample)
    return sorted(out, key=lambda s: s["task"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=FOLDER)
    parser.add_argument("--seed", default="", help="any word: another set")
    parser.add_argument("--times", type=int, default=1, help="so many times as large")
    given = parser.parse_args()
    for folder in ("pictures", "sounds"):
        folder = os.path.join(given.folder, folder)
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))
    sets = {"text.jsonl": text_set(given.seed, given.times), "pictures.jsonl": picture_set(given.folder, given.seed, given.times),
            "sounds.jsonl": sound_set(given.folder, given.seed, given.times)}
    for name, samples in sets.items():
        lines(given.folder, name, samples)
        print(name, len(samples))


if __name__ == "__main__":
    main()
