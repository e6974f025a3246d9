"""Scoring answers by the rules of the held-out set; the same rules as `gemmule eval`.

    python3 tools/box/score.py box.gguf tests/box/pictures.jsonl [--most N]

answers pictures and sounds (and text) with the numpy reference on an exported file.

A sample's "check" may ask for several things at once:
    exact: [texts]      the trimmed answer is one of them
    contains: [texts]   the answer has each of them, whatever the case of letters
    number: n           the last whole number in the answer is n
    json: value         the answer is JSON and equals this
    calls: [{name, arguments}]  exactly these tools are called, with equal arguments
    thinks: true        a thought came first
    words: file         every word of the answer stands in this file (one a line, beside the set), or the user or a tool has said it; a letter of its own is
                        one, too, and there is at least one word or number

A sample with "turns" instead of "messages" is a conversation that the model has itself: each is said by the user, and every answer is scored. Tools
answer what "results" says.
"""

import argparse
import collections
import json
import os
import re

import chat


def parse_output(text, sample):
    """What a model wrote, special tokens by name → content, thinking, calls, and whether it ended by itself."""
    if chat.prompt(sample).endswith(chat.THOUGHT):  # the prompt has begun the thought already
        text = chat.THOUGHT + text
    ended = text.endswith(("<turn|>", "<|tool_response>", "<eos>"))
    text = re.sub(r"(<turn\|>|<\|tool_response>|<eos>)$", "", text)
    thinking = "".join(re.findall(r"<\|channel>thought\n(.*?)<channel\|>", text, re.S)).strip()
    calls = [parse_call(c) for c in re.findall(r"<\|tool_call>(.*?)<tool_call\|>", text, re.S)]
    text = re.sub(r"<\|channel>.*?<channel\|>|<\|tool_call>.*?<tool_call\|>", "", text, flags=re.S)
    return {"content": text.strip(), "thinking": thinking, "calls": calls, "ended": ended}


def parse_call(text):
    found = re.fullmatch(r"call:(\w+)\{(.*)\}", text, re.S)
    if not found:
        return {"name": None, "arguments": None}
    strings = []
    keep = lambda m: strings.append(m.group(1)) or f'"\x00{len(strings) - 1}"'
    body = re.sub(r'<\|"\|>(.*?)<\|"\|>', keep, found.group(2), flags=re.S)
    body = re.sub(r"([{,]|^)\s*(\w+):", r'\1"\2":', body)
    body = re.sub('"\x00(\\d+)"', lambda m: json.dumps(strings[int(m.group(1))]), body)
    try:
        return {"name": found.group(1), "arguments": json.loads("{" + body + "}")}
    except ValueError:
        return {"name": found.group(1), "arguments": None}


LETTERS = r"[A-Za-z\u0080-\U0010ffff]+"
WORD = re.compile(f"{LETTERS}(?:'{LETTERS})*")
SMALL = {c: c + 32 for c in range(ord("A"), ord("Z") + 1)}  # as the program has it: other letters keep their case


def words_of(text):
    return WORD.findall(text.translate(SMALL))


def is_made_of_words(content, path, said):
    with open(path, encoding="utf-8") as f:
        known = set(f.read().split("\n")) | set(words_of(said))
    found = words_of(content)
    return bool(found or re.search(r"\d", content)) and all(w in known or (len(w) == 1 and w.isascii()) for w in found)


def passes(check, output, folder="", said=""):
    """folder: where the set lies; said: all that user and tools have said, for the rule `words`."""
    content = output["content"]
    for rule, want in check.items():
        if rule == "exact":
            good = content in want
        elif rule == "contains":
            good = all(w.lower() in content.lower() for w in want)
        elif rule == "number":
            numbers = re.findall(r"(?<![\w.])-?\d+", content)
            good = bool(numbers) and int(numbers[-1]) == want
        elif rule == "json":
            try:
                good = json.loads(content) == want
            except ValueError:
                good = False
        elif rule == "calls":
            good = [dict(c) for c in output["calls"]] == [{"name": c["name"], "arguments": c["arguments"]} for c in want]
        elif rule == "thinks":
            good = bool(output["thinking"])
        elif rule == "words":
            good = is_made_of_words(content, os.path.join(folder, want), said)
        else:
            raise ValueError(f"no rule is called {rule!r}")
        if not good:
            return False
    return True


def table(results):
    """results: [(task, passed, ended)] → rows (task, right, all, ended), in the order of first appearance, and a row for all."""
    rows = collections.OrderedDict()
    for task, right, ended in results:
        row = rows.setdefault(task, [0, 0, 0])
        row[0] += right
        row[1] += 1
        row[2] += ended
    out = [(task, *row) for task, row in rows.items()]
    return out + [("all", *(sum(r[i] for r in out) for i in (1, 2, 3)))]


def show(rows):
    for task, right, n, ended in rows:
        print(f"{task:16} {right:4} of {n:4}  {100 * right / max(1, n):5.1f} %   ended {100 * ended / max(1, n):5.1f} %")


def read_set(path):
    """The samples of a .jsonl file, with the paths of their pictures and sounds made whole."""
    folder, out = os.path.dirname(path), []
    with open(path, encoding="utf-8") as f:
        for line in f:
            sample = json.loads(line)
            for kind in ("image", "audio"):
                if kind in sample:
                    sample[kind] = os.path.join(folder, sample[kind])
            out.append(sample)
    return out


def spread(samples, most):
    """At most so many, from all over the set."""
    return samples if not most or most >= len(samples) else [samples[i * len(samples) // most] for i in range(most)]


def media_arrays(sample):
    """("image", patches, places, count), ("audio", mel, valid, count) or None."""
    if "image" in sample:
        import pictures
        from PIL import Image

        return ("image", *pictures.preprocess(Image.open(sample["image"])))
    if "audio" in sample:
        import sounds

        mel, valid = sounds.features(sounds.read_wav(sample["audio"]))
        return "audio", mel, valid, sounds.soft_tokens(int(valid.sum()))
    return None


MOST_CALLS = 3  # rounds of calls before an answer


def converse(sample, answer):
    """Has the conversation of a sample with "turns"; answer(sample with messages) → what is written. Yields (question, output, said) for each answer."""
    messages, said = [], ""
    for question in sample["turns"]:
        messages.append({"role": "user", "content": question})
        said += question + "\n"
        for _ in range(MOST_CALLS):
            now = dict(sample, messages=list(messages))
            output = parse_output(answer(now), now)
            calls = [{"type": "function", "function": dict(c, name=c["name"] or "", arguments=c["arguments"] or {})} for c in output["calls"]]
            messages.append({"role": "assistant", "content": output["content"]} | ({"tool_calls": calls} if calls else {}))
            for c in calls:
                name = c["function"]["name"]
                content = sample["results"].get(name) or json.dumps({"error": f"There is no tool named '{name}'. The tools are: {', '.join(sample['results'])}."})
                messages.append({"role": "tool", "tool_name": name, "content": content})
                said += content + "\n"
            if not calls:
                break
        yield question, output, said


def main():
    import batches
    import reference
    from tokenizer import Tokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("set", nargs="+")
    parser.add_argument("--most", type=int, help="at most this many of each set")
    parser.add_argument("--show", action="store_true", help="print what was answered wrongly")
    given = parser.parse_args()
    tok, weights, results = Tokenizer.load(), reference.Weights(given.model), []
    text, towers = reference.Text(weights), reference.Towers(weights)
    written = lambda s: tok.decode(text.greedy(batches.prompt_tokens(tok, s), tok.stops, 200))
    for path, sample in ((path, s) for path in given.set for s in spread(read_set(path), given.most)):
        for question, output, said in converse(sample, written) if "turns" in sample else ():
            right = passes(sample["check"], output, os.path.dirname(path), said)
            results.append((sample["task"], right, output["ended"]))
            if given.show and not right:
                print(f"{sample['task']}: {question} → {output['content']!r}")
        if "turns" in sample:
            continue
        media, soft, soft_id = media_arrays(sample), None, None
        if media:
            soft = (towers.see if media[0] == "image" else towers.hear)(media[1], media[2])
            soft_id = tok.special[f"<|{media[0]}|>"]
        ids = text.greedy(batches.prompt_tokens(tok, sample, media[3] if media else 0), tok.stops, 200, soft, soft_id)
        output = parse_output(tok.decode(ids), sample)
        right = passes(sample["check"], output)
        results.append((sample["task"], right, output["ended"]))
        if given.show and not right:
            print(f"{sample['task']}: {sample['messages'][-1]['content']} → {tok.decode(ids)!r}, wanted {sample['check']}")
    show(table(results))


if __name__ == "__main__":
    main()
