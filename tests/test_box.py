"""The recipe of the model in the box, as far as it goes without a GPU: run by test_box.sh with the program as argument."""

import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, "tools/box")
sys.dont_write_bytecode = True

import numpy as np
from PIL import Image

import batches
import captions
import chat
import export
import gguf
import pictures
import pieces
import reference
import score
import sizes
import sounds
import talks
import tasks
import turn
from tokenizer import Tokenizer

PROGRAM = sys.argv[1]
SCRATCH = tempfile.mkdtemp()
TOK = Tokenizer.load()
TEXT_SET = score.read_set("tests/box/text.jsonl")
passed = failed = 0


def check(name, good, detail=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print(f"FAIL {name} {detail}")


def gemmule(*arguments, code=0):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    check(" ".join(arguments)[:100], done.returncode == code, f"exit code {done.returncode}: {done.stderr}{done.stdout[-500:]}")
    return done.stdout


def at(name):
    return os.path.join(SCRATCH, name)


# ---- tasks -----------------------------------------------------------------------------------------------------------


def test_tasks():
    some = lambda seed, held: [tasks.sample(random.Random(f"{seed} {i}"), held) for i in range(1500)]
    first, other, held = some(1, False), some(2, False), some(1, True)
    check("a seed gives the same samples", first == some(1, False))
    check("another seed gives others", first != other)
    check("every task comes up", {s["task"] for s in first} == set(tasks.TASKS))
    for s in first + held:
        output = score.parse_output(chat.answer(s), s)
        if not score.passes(s["check"], output) or not output["ended"]:
            check("the answer passes its own check", False, f"{s['task']}: {chat.answer(s)} {s['check']}")
            break
    else:
        check("answers pass their own checks", True)
    longest = max(len(TOK.encode(chat.render(s))) for s in first + held)
    check("a sample fits into a row", longest <= batches.Shape().length, longest)


def test_split():
    """What the held-out set asks is never asked in training, where something is held out."""
    asked = {s["messages"][-1]["content"].lower().rstrip("?.") for s in TEXT_SET if s["task"] in ("arithmetic", "comparing", "story",
        "modesty", "about", "tools") and len(s["messages"]) == 1}
    seen = set()
    for i in range(12_000):
        s = tasks.sample(random.Random(f"split {i}"))
        seen.add(str(s["messages"][-1].get("content")).lower().rstrip("?."))
    check("held-out questions", len(asked) > 150, len(asked))
    check("training never asks them", not asked & seen, sorted(asked & seen)[:5])
    check("fonts are disjoint", not set(pictures.FONTS[True]) & set(pictures.FONTS[False]))
    check("voices are disjoint", not set(sounds.VOICES[True]) & set(sounds.VOICES[False]))
    check("a tenth is held out", 80 < sum(turn.aside(f"case {i}") for i in range(1000)) < 120)


# ---- chat format and tokens ------------------------------------------------------------------------------------------


def test_chat(model):
    prompts = [json.loads(line) for line in gemmule("eval", model, "tests/box/text.jsonl", "--prompts", "--backend", "cpu", "--threads", "1").splitlines()]
    check("a prompt for each line", len(prompts) == len(TEXT_SET))
    wrong = [s for p, s in zip(prompts, TEXT_SET) if p != chat.prompt(s)]
    check("prompts are gemmule's", not wrong, wrong[:1])


def test_tokens(model):
    texts = [chat.render(s | {"answer": {"content": "Yes."}}) for s in TEXT_SET[::40]]
    texts += ["Hello, world!", "  two  spaces   three\n\nlines\n\n\n\n\nend", "3333 + 0.5", "Straße, naïve café, sœur", "日本語 🙂 \t tab",
              "{\n    \"a\": [1, 2]\n}",
              "UPPER lower MiXeD", "don't", "a" * 300, "<|turn>user<turn|>", " ", "\n"]
    for text in texts:
        with open(at("text"), "w", encoding="utf-8") as f:
            f.write(text)
        found = json.loads(gemmule("tokenize", model, "-f", at("text"), "--special", "--json"))
        if found["ids"] != TOK.encode(text):
            check("tokens are gemmule's", False, text)
        check("tokens turn back into the text", TOK.decode(found["ids"]) == text, text)
    plain = json.loads(gemmule("tokenize", model, "a <turn|> b", "--json"))["ids"]
    check("without specials", plain == TOK.encode("a <turn|> b", special=False))


# ---- export ----------------------------------------------------------------------------------------------------------


def test_limits():
    tensors = export.random_weights(sizes.parameters(sizes.BOX))
    report = sizes.report()
    check("read per token", report["read per token"] <= sizes.MOST_READ_PER_TOKEN)
    check("vision", report["vision"] <= sizes.MOST_VISION)
    check("audio", report["audio"] <= sizes.MOST_AUDIO)
    check("vocabulary", 2000 <= len(TOK.tokens) == sizes.BOX.text.vocab_size <= 4000)
    size = export.write_single(at("box.gguf"), tensors, sizes.BOX, TOK, "Q8_0")
    check("file", size == os.path.getsize(at("box.gguf")) <= sizes.MOST_FILE_BYTES, size)
    size = export.write_draft(at("draft.gguf"), export.random_weights(sizes.draft_parameters(sizes.BOX)), sizes.BOX, TOK, "Q8_0")
    check("drafter", size <= sizes.MOST_DRAFT_BYTES, size)
    shown = json.loads(gemmule("inspect", at("box.gguf"), "--json"))
    check("gemmule reads as much", abs(shown["bytes_per_token"] - report["read per token"] * 34 / 32) < 0.01 * shown["bytes_per_token"],
          shown.get("bytes_per_token"))
    pieces.save(SCRATCH, "weights", {n: np.asarray(w) for n, w in tensors.items()})
    back = pieces.load(SCRATCH, "weights")
    check("weights in pieces", all(np.array_equal(back[n], tensors[n]) for n in tensors))
    check("a piece is small", max(os.path.getsize(at(n)) for n in os.listdir(SCRATCH) if n.startswith("weights")) < 16 << 20)


def expectation(path, text, prompts):
    metadata, out = [("general.architecture", gguf.STRING, "expect")], []
    for i, sample in enumerate(prompts):
        ids = TOK.encode(chat.prompt(sample))
        metadata.append((f"prompt.{i}", gguf.STRING, chat.prompt(sample).removeprefix("<bos>")))
        out += [(f"ids.{i}", np.array(ids, np.int32), "I32"), (f"logits.{i}", text.logits(ids), "F32"),
                (f"greedy.{i}", np.array(text.greedy(ids, set(), 12), np.int32), "I32")]
    gguf.write(path, metadata, out)


def test_export():
    """Weights → file → gemmule gives what weights → file → numpy gives, in both flavours; numpy itself agrees with transformers' fixtures."""
    fixture = gguf.File("tests/fixtures/tiny-dense.expect.gguf")
    text = reference.Text(reference.Weights("tests/fixtures/tiny-dense.gguf"))
    error = reference.relative_error(text.logits(fixture.tensor("ids.1")), fixture.tensor("logits.1"))
    check("the reference agrees with transformers", error < 1e-5, error)

    tiny = sizes.TINY
    weights = export.random_weights(sizes.parameters(tiny), 7)
    export.write_single(at("single.gguf"), weights, tiny, TOK, "F16")
    export.write_pair(at("text.gguf"), at("towers.gguf"), weights, tiny, TOK, "F16")
    single, pair = reference.Weights(at("single.gguf")), reference.Weights(at("text.gguf"), at("towers.gguf"))
    expectation(at("expect.gguf"), reference.Text(single), [s for s in TEXT_SET[::80] if len(s["messages"]) < 5][:4])
    for name in ("single.gguf", "text.gguf"):
        gemmule("check", at(name), at("expect.gguf"), "--backend", "cpu", "--precise", "--tolerance", "1e-4", "--threads", "1")
    back = export.import_single(at("single.gguf"), tiny)
    worst = max(float(np.abs(back[n] - weights[n]).max()) for n in weights)
    check("the way back", worst < 1e-6, worst)

    # The towers, in both flavours, whose names differ.
    patches, places, count = pictures.preprocess(Image.open("tests/box/" + json.loads(open("tests/box/pictures.jsonl").readline())["image"]))
    seen = [reference.Towers(w).see(patches, places) for w in (single, pair)]
    check("pictures in both flavours", np.array_equal(*seen) and seen[0].shape == (count, tiny.text.hidden_size) and np.isfinite(seen[0]).all())
    mel, valid = sounds.features(sounds.read_wav("tests/box/" + json.loads(open("tests/box/sounds.jsonl").readline())["audio"]))
    heard = [reference.Towers(w).hear(mel, valid) for w in (single, pair)]
    check("sounds in both flavours", np.array_equal(*heard) and heard[0].shape == (sounds.soft_tokens(int(valid.sum())), tiny.text.hidden_size))
    check("bounds clip", reference.relative_error(reference.Towers(unbounded(single)).see(patches, places), seen[0]) > 1e-3)

    x = np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)
    error = reference.relative_error(gguf.dequantise_q8_0(gguf.quantise_q8_0(x)).reshape(64, 64), x)
    check("Q8_0", 1e-3 < error < 6e-3, error)
    check("Q8_0 of zeros", not gguf.dequantise_q8_0(gguf.quantise_q8_0(np.zeros(32))).any())
    try:
        export.write_single(at("bad.gguf"), {n: w for n, w in weights.items() if "norm.weight" not in n}, tiny, TOK, "F16")
        check("missing weights are named", False)
    except SystemExit as e:
        check("missing weights are named", "norm.weight" in str(e), e)


def unbounded(weights):
    other = reference.Weights.__new__(reference.Weights)
    other.__dict__ |= weights.__dict__ | {"tensors": {n: t for n, t in weights.tensors.items() if n.rsplit(".", 1)[-1] not in sizes.BOUNDS}}
    return other


# ---- pictures and sounds ---------------------------------------------------------------------------------------------


def test_pictures():
    for (width, height), want in {(224, 224): (384, 384), (640, 480): (432, 336), (1920, 1080): (528, 288), (100, 1000): (96, 1248), (30,
        3000): (48, 3360),
                                  (4000, 3000): (432, 336)}.items():
        check(f"target of {width} × {height}", pictures.target_size(width, height) == want, pictures.target_size(width, height))
    r = np.random.default_rng(3)
    for sizes_ in ((20, 20, 48, 96), (200, 150, 432, 336), (70, 90, 48, 48), (48, 48, 48, 48)):
        image = r.integers(0, 256, (sizes_[1], sizes_[0], 3)).astype(np.uint8)
        got, want = pictures.resize(image, *sizes_[2:]).astype(int), resize_plainly(image, *sizes_[2:])
        check(f"resize {sizes_}", np.abs(got - want).max() <= 2 and (got != want).mean() < 0.02, np.abs(got - want).max())
    draw = lambda: np.asarray(pictures.spoil(random.Random(5), pictures.draw_scene(random.Random(5), captions.scene(random.Random(5)))))
    check("a seed gives the same picture", np.array_equal(draw(), draw()))
    patches, places, count = pictures.preprocess(Image.new("RGB", (224, 224), (255, 0, 10)))
    check("patches", patches.shape == (576, 768) and count == 64 and (patches.reshape(-1, 3) == (255, 0, 10)).all()
          and tuple(places[25]) == (1, 1))


def resize_plainly(image, width, height):
    """The filter with real weights."""
    x = image.astype(float)
    for axis, size in ((1, width), (0, height)):
        if x.shape[axis] == size:
            continue
        scale = x.shape[axis] / size
        wide = max(1.0, scale)
        matrix = pictures.cubic((np.arange(x.shape[axis]) + 0.5 - (np.arange(size)[:, None] + 0.5) * scale) / wide)
        x = np.moveaxis(np.tensordot(matrix / matrix.sum(1, keepdims=True), x, (1, axis)), 0, axis)
        x = np.clip(np.floor(x + 0.5), 0, 255)
    return x.astype(int)


def test_sounds():
    for n, (frames, tokens) in {160: (0, 0), 161: (1, 1), 320: (1, 1), 321: (2, 1), 1600: (9, 3), 16000: (99, 25), 480000: (2999, 750)}.items():
        _, valid = sounds.features(np.zeros(n))
        check(f"{n} samples", (int(valid.sum()), sounds.soft_tokens(int(valid.sum()))) == (frames, tokens))
    mel, valid = sounds.features(0.5 * np.sin(2 * np.pi * 440 * np.arange(1600) / 16000))
    check("frames of a tone", mel.shape == (10, 128) and valid.sum() == 9)
    for frame, band, want in ((0, 0, -6.90776), (0, 24, 2.83757), (1, 24, 3.52731), (1, 64, -6.39757), (5, 30, -1.34832)):
        check(f"mel {frame} {band}", abs(mel[frame, band] - want) < 2e-4, mel[frame, band])
    check("invalid frames are zero", not mel[9].any())
    x, rising = sounds.tone(random.Random(4))
    again = sounds.tone(random.Random(4))
    check("a seed gives the same tone", np.array_equal(x, again[0]) and rising == again[1])
    sounds.write_wav(at("tone.wav"), sounds.spoil(random.Random(4), x))
    back = sounds.read_wav(at("tone.wav"))
    check("WAV and back", np.abs(back - sounds.spoil(random.Random(4), x) / 32768).max() < 1 / 128)
    tone = np.sin(2 * np.pi * 1000 * np.arange(22050) / 22050)
    slow = sounds.resample(tone, 22050)
    check("resampling keeps a tone", len(slow) == 16000 and np.abs(slow - np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000)).max() < 1e-6)


def test_batches():
    shape = batches.Shape(4, 384, 1, 1)
    arrays = batches.empty(shape)
    packer = batches.Packer(TOK, shape, arrays)
    r = random.Random(9)
    picture = captions.sample_of("image", *captions.about_scene(r, captions.scene(r)), "shapes") | {"image": pictures.draw_scene(r,
        captions.scene(r))}
    tone, rising = sounds.tone(r)
    sound = captions.sample_of("audio", *captions.about_tone(r, rising), "tones") | {"audio": sounds.spoil(r, tone)}
    check("a picture and a sound", packer.add_picture(picture) and packer.add_sound(sound))
    samples = [tasks.sample(r) for _ in range(60)]
    kept = [s for s in samples if packer.add_text(s)]
    check("rows are filled", (arrays["segments"] >= 0).mean() > 0.85 and len(kept) > 8, (arrays["segments"] >= 0).mean())
    answers = [TOK.encode(chat.answer(s)) for s in [picture, sound] + kept]
    predicted = [list(arrays["targets"][row][(arrays["weights"][row] > 0) & (arrays["segments"][row] == part)])
                 for row in range(4) for part in range(arrays["segments"][row].max() + 1)]
    check("what is to be predicted is the answers", sorted(predicted) == sorted(answers))
    soft = arrays["soft"][arrays["soft"] > 0]
    check("soft tokens are numbered", len(set(soft)) == len(soft) and arrays["seen"].sum() % 9 == 0 and arrays["cells"].max() == 70)
    check("a batch depends on seed and number, not on the process",
          all(np.array_equal(a, b) for a, b in zip(take_batches(4, 2), take_batches(4, 1))))


def test_talks():
    """Long conversations: all answers are learned, and each passes as it stands."""
    some = [talks.talk(random.Random(f"talk {i}"), i % 2 == 0) for i in range(200)]
    check("a seed gives the same conversations", some == [talks.talk(random.Random(f"talk {i}"), i % 2 == 0) for i in range(200)])
    lengths = []
    for s in some:
        ids = TOK.encode(chat.render(s))
        lengths.append(len(ids))
        said = [m for m in s["messages"] + [s["answer"]] if m["role"] == "assistant"]
        wanted = [chat.call(m["tool_calls"][0]) + "<|tool_response>" if m.get("tool_calls") else m["content"] + "<turn|>" for m in said]
        if [TOK.decode(ids[first:end]) for first, end in batches.answers_in(TOK, ids)] != wanted:
            check("all answers are found", False, chat.render(s))
            break
        if not score.passes(s["check"], score.parse_output(chat.answer(s), s)):
            check("the last answer passes its own check", False, f"{chat.answer(s)} {s['check']}")
    check("they fill a row, and fit", 1500 < max(lengths) <= batches.Shape().length, max(lengths))
    check("some are short", min(lengths) < 200, min(lengths))
    turns = [len(json.loads(line)["turns"]) for line in open("tests/box/talks.jsonl", encoding="utf-8")]
    check("conversations of 20 turns", set(turns) == {20} and len(turns) > 10, turns)
    shape = batches.Shape(2, 2048, 0, 0)
    arrays = batches.empty(shape)
    batches.Packer(TOK, shape, arrays).fill(random.Random(1), 0)
    check("rows of conversations are filled", (arrays["segments"] >= 0).mean() > 0.95, (arrays["segments"] >= 0).mean())
    learned = arrays["weights"] > 0
    check("all that is learned ends an answer", np.isin(arrays["targets"][learned & ~np.roll(learned, -1, 1)], sorted(TOK.stops)).all())


def take_batches(count, workers):
    feed = batches.Feed(TOK, batches.Shape(2, 384, 0, 0), 3, workers=workers)
    out = [feed.take()["tokens"].copy() for _ in range(count)]
    feed.close()
    return out


def test_score():
    calls = [{"name": "f", "arguments": {"a": 1, "b": 'x "y"'}}]
    text = chat.answer({"messages": [], "answer": {"thinking": "Hm.", "tool_calls": [{"function": calls[0]}]}})
    output = score.parse_output(text, {"messages": []})
    check("a call is read", output == {"content": "", "thinking": "Hm.", "calls": calls, "ended": True}, output)
    for text, rules, want in (("5 - 7 = -2.", {"number": -2}, True), ("It is 5-3", {"number": 3}, True), ("x42", {"number": 42}, False),
                              ("1.5", {"number": 5}, False),
                              ('{"a": 1}', {"json": {"a": 1}}, True), ("Yes.", {"contains": ["yes"], "exact": ["No."]}, False)):
        check(f"{text} {rules}", score.passes(rules, score.parse_output(text + "<turn|>", {"messages": []})) == want)
    for text, said, want in (("A fox is here.", "", True), ("A c-a-t.", "", True), ("A fxo is here.", "", False), ("Zzoq!", "I am Zzoq", True),
                             ("12", "", True), ("!!", "", False), ("It's", "it's", True), ("\ufffd", "", False)):
        output = {"content": text, "calls": [], "thinking": ""}
        check(f"words: {text} after {said}", score.passes({"words": "words.txt"}, output, "tests/box", said) == want)
    script = iter(['<|tool_call>call:clock{}<tool_call|><|tool_response>', "It is 14:05.<turn|>", '<|tool_call>call:x{}<tool_call|><|tool_response>', "Sorry.<turn|>"])
    talk = {"turns": ["What time is it?", "And now?"], "results": {"clock": "14:05"}}
    heard = [(question, output["content"], said) for question, output, said in score.converse(talk, lambda s: next(script))]
    check("a conversation", [h[:2] for h in heard] == [("What time is it?", "It is 14:05."), ("And now?", "Sorry.")], heard)
    check("an unknown tool", "no tool named 'x'. The tools are: clock." in heard[1][2], heard[1][2])
    media = score.read_set("tests/box/pictures.jsonl") + score.read_set("tests/box/sounds.jsonl")
    check("files of the set are there", all(os.path.exists(s.get("image") or s.get("audio")) for s in media))
    size = sum(os.path.getsize(os.path.join(folder, n)) for folder, _, names in os.walk("tests/box") for n in names)
    check("the set is small", size < 1_600_000, size)


test_limits()
test_chat(at("box.gguf"))
test_tokens(at("box.gguf"))
test_tasks()
test_split()
test_export()
test_pictures()
test_sounds()
test_batches()
test_talks()
test_score()
for name in os.listdir(SCRATCH):
    os.remove(at(name))
os.rmdir(SCRATCH)
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
