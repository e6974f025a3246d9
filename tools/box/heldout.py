"""Writes the held-out set, tests/box: cases that training never sees, with other seeds, voices and fonts.

    python3 tools/box/heldout.py                                                  tests/box
    python3 tools/box/heldout.py --text                                           only its texts: questions, conversations, words
    python3 tools/box/heldout.py --folder build/box-more --seed more --times 6    others, and more of them, for steadier scores

The files of tests/box are committed, so it is written again only when the tasks change. What is on the held-out side is decided in turn.py, pictures.py and sounds.py.
"""

import argparse
import json
import os
import random

import captions
import pictures
import score
import sounds
import talks
import tasks
import tasks_talk
import tasks_tools

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "box")
COUNTS = {"arithmetic": 100, "tools": 60, "tool results": 40, "json": 30, "story": 20, "modesty": 24}
OTHERS = 24
LAST = {"second sums": 24, "tool talks": 30, "long talks": 20}  # conversations of which the last answer is scored
TALKS, TURNS = 8, 20  # conversations that the model has itself, beside those that are written by hand
SHAPES, NUMBERS, DIGITS, WORDS, TONES = 40, 40, 16, 16, 8


def lines(folder, name, samples):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        for s in samples:
            f.write(json.dumps({k: v for k, v in s.items() if k not in ("answer", "marks", "all") and v not in (False, [])}, ensure_ascii=False) + "\n")


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


def last_answer(name, r):
    """A conversation on the held-out side, and what its last answer must be; half of the last tool turns end where the call is due."""
    if name == "second sums":
        talk = talks.Talk(r, True)
        for kind in r.choices(["arithmetic", "sum again", "decimals", "small talk"], k=r.randrange(1, 6)) + ["arithmetic"]:
            talk.take_turn(kind)
        talk.take_turn(r.choice(["arithmetic", "sum again"]))
    else:
        long = name == "long talks"
        talk = talks.Talk(r, True, talks.some_tools(r) if long else r.choice([["clock", "calculator"], ["clock", "weather", "calculator"]]))
        talk.go_on(r.randrange(12, 40) if long else r.randrange(0, 6))
        talk.take_turn("tool" if talk.tools else r.choice(talks.SUMS) if r.random() < 0.5 else r.choice(list(tasks.TASKS)[:11]))
    sample = talk.sample(name)
    call = sample["messages"][-2]
    if call.get("tool_calls") and r.random() < 0.5:
        sample |= {"messages": sample["messages"][:-2], "answer": call, "check": {"calls": [c["function"] for c in call["tool_calls"]]}}
    return sample


def text_set(seed, times):
    r, out = random.Random(f"held out{seed}"), []
    for name in tasks.TASKS:
        out += distinct(lambda: tasks.make_sample(name, r, True), COUNTS.get(name, OTHERS) * times)
    for name, count in LAST.items():
        out += distinct(lambda: last_answer(name, r), count * times)
    return out


# ---- conversations that the model has itself -------------------------------------------------------------------------


def result_of(tool):
    """What each tool answers in these conversations, whatever it is asked: the words count here, not the sums."""
    return {"calculator": '{"result":12.5}', "calculate": '{"result":12.5}', "weather": '{"condition":"sunny","temperature":21}',
            "get_weather": '{"condition":"sunny","temperature":21}'}.get(tool, '{"time":"14:05","date":"2026-11-16","timezone":"Europe/Rome"}')


def talk_set(seed, times):
    """What people type in 20 turns: some by hand (conversations.json), some from the generator's held-out side."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "conversations.json"), encoding="utf-8") as f:
        conversations = [(c["turns"], tasks_tools.APP_TOOLS if c["tools"] == "app" else c["tools"]) for c in json.load(f)]
    r = random.Random(f"held out talks{seed}")
    for _ in range(TALKS * times):
        talk = talks.Talk(r, True, talks.some_tools(r)).go_on(TURNS)
        conversations.append(([m["content"] for m in talk.messages if m["role"] == "user"][:TURNS], list(talk.tools.values())))
    out = []
    for turns, tools in conversations:
        names = [t["function"]["name"] for t in tools]
        out.append({"task": "talks", "turns": turns, "tools": tools, "results": {n: result_of(n) for n in names}, "check": {"words": "words.txt"}})
    return out


def words():
    """All words that the recipe's answers are made of, without the names that it makes up."""
    kept, found = tasks_talk.made_up, set()
    tasks_talk.made_up = lambda r: r.choice(tasks_talk.NAMES + tasks_talk.CITIES)
    for i in range(20_000):
        r, held = random.Random(f"words {i}"), i % 2 == 0
        samples = [tasks.sample(r, held)] + ([talks.talk(r, held)] if i % 20 < 2 else [])
        for s in samples:
            for m in s["messages"] + [s["answer"]]:
                if m["role"] == "assistant":
                    found |= set(score.words_of(m["content"]))
    tasks_talk.made_up = kept
    return sorted(w for w in found if len(w) > 1)


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
    parser.add_argument("--text", action="store_true", help="leave pictures and sounds alone")
    given = parser.parse_args()
    sets = {"text.jsonl": text_set(given.seed, given.times), "talks.jsonl": talk_set(given.seed, given.times)}
    for folder in () if given.text else ("pictures", "sounds"):
        folder = os.path.join(given.folder, folder)
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))
    if not given.text:
        sets |= {"pictures.jsonl": picture_set(given.folder, given.seed, given.times), "sounds.jsonl": sound_set(given.folder, given.seed, given.times)}
    os.makedirs(given.folder, exist_ok=True)
    for name, samples in sets.items():
        lines(given.folder, name, samples)
        print(name, len(samples))
    with open(os.path.join(given.folder, "words.txt"), "w", encoding="utf-8") as f:
        f.write("".join(w + "\n" for w in words()))


if __name__ == "__main__":
    main()
