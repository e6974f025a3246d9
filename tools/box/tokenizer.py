"""Gemma 4's tokenizer with a small vocabulary of its own: ranked BPE over UTF-8 with ▁ for the space, byte fallback, special tokens.

    python3 tools/box/tokenizer.py            trains the vocabulary on generated text and writes vocabulary.json

Merges never cross a border between a word and what is no part of it, and never join digits, so a text falls into units whose
tokens can be remembered. Encoding the whole run at once, as the format asks for, gives the same.
"""

import collections
import json
import os
import re

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vocabulary.json")

SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>", "<tool|>",
            "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|image>", "<|image|>", "<image|>",
            "<|audio>", "<|audio|>", "<audio|>", "<|video|>"]
VISIBLE = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'}
STOPS = ("<eos>", "<turn|>", "<|tool_response>")
NEWLINES = ["\n" * n for n in range(1, 5)]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

SPACE = "▁"
UNITS = re.compile(r"▁+(?:[^\W\d_]+)?|[^\W\d_]+|.", re.S)
SPLIT = re.compile("(" + "|".join(re.escape(s) for s in sorted(SPECIALS, key=len, reverse=True)) + ")")
RUNS = re.compile(r"\n+|[^\n]+")


class Tokenizer:
    def __init__(self, characters, merges):
        """`characters`: those that are tokens of their own; `merges`: pairs of texts, best first."""
        self.characters, self.merges = characters, [tuple(m) for m in merges]
        self.tokens = SPECIALS + NEWLINES + [f"<0x{b:02X}>" for b in range(256)] + list(characters)
        known = set(self.tokens)
        for left, right in self.merges:  # two ways to the same text make one token
            if left + right not in known:
                known.add(left + right)
                self.tokens.append(left + right)
        self.ids = {t: i for i, t in enumerate(self.tokens)}
        self.rank = {pair: i for i, pair in enumerate(self.merges)}
        self.first_byte = self.ids["<0x00>"]
        self.special = {s: self.ids[s] for s in SPECIALS}
        self.stops = {self.ids[s] for s in STOPS}
        self.remembered = {}

    @staticmethod
    def load(path=FILE):
        with open(path, encoding="utf-8") as f:
            data = json.load(f)
        return Tokenizer(data["characters"], [m.split(" ") for m in data["merges"]])

    def save(self, path=FILE):
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"characters": self.characters, "merges": [" ".join(m) for m in self.merges]}, f, ensure_ascii=False, indent=0)
            f.write("\n")

    def types(self):
        def kind(i, text):
            if i < len(SPECIALS):
                return USER_DEFINED if text in VISIBLE else CONTROL
            return BYTE if self.first_byte <= i < self.first_byte + 256 else NORMAL
        return [kind(i, text) for i, text in enumerate(self.tokens)]

    def unit(self, text):
        """The tokens of one unit: merge the adjacent pair of the lowest rank, the leftmost of equals, until none has a rank."""
        found = self.remembered.get(text)
        if found is not None:
            return found
        symbols = list(text)
        while len(symbols) > 1:
            best = min(range(len(symbols) - 1), key=lambda i: self.rank.get((symbols[i], symbols[i + 1]), len(self.rank)))
            if (symbols[best], symbols[best + 1]) not in self.rank:
                break
            symbols[best:best + 2] = [symbols[best] + symbols[best + 1]]
        out = []
        for s in symbols:
            if s in self.ids:
                out.append(self.ids[s])
            else:
                out += [self.first_byte + b for b in s.encode("utf-8")]
        if len(self.remembered) < 100_000:
            self.remembered[text] = out
        return out

    def encode_plain(self, text, out):
        for run in RUNS.findall(text.replace(" ", SPACE)):
            if run[0] == "\n" and run in self.ids:
                out.append(self.ids[run])
                continue
            for unit in UNITS.findall(run):
                out += self.unit(unit)

    def encode(self, text, special=True):
        """Ids of a text, without <bos>. `special`: texts such as <|turn> are what they name."""
        out = []
        if not special:
            self.encode_plain(text, out)
            return out
        for i, piece in enumerate(SPLIT.split(text)):
            if i % 2:
                out.append(self.special[piece])
            elif piece:
                self.encode_plain(piece, out)
        return out

    def decode(self, ids):
        data = b""
        for i in ids:
            if self.first_byte <= i < self.first_byte + 256:
                data += bytes([i - self.first_byte])
            else:
                data += self.tokens[i].replace(SPACE, " ").encode("utf-8")
        return data.decode("utf-8", "replace")


# ---- training --------------------------------------------------------------------------------------------------------

def train(texts, size):
    """A vocabulary of `size` tokens. Of pairs that are equally frequent the one that sorts first is merged: the result depends on the texts only."""
    words, characters = collections.Counter(), collections.Counter()
    for text in texts:
        for i, piece in enumerate(SPLIT.split(text)):
            if i % 2:
                continue
            for run in RUNS.findall(piece.replace(" ", SPACE)):
                if run[0] != "\n":
                    words.update(UNITS.findall(run))
    for word, n in words.items():
        for c in word:
            characters[c] += n
    alphabet = {chr(c) for c in range(0x21, 0x7f)} | {SPACE} | {c for c, n in characters.items() if n >= 5}
    alphabet = "".join(sorted(alphabet))
    merges = [(SPACE, SPACE), (SPACE * 2, SPACE * 2)]  # indented JSON
    room = size - len(SPECIALS) - len(NEWLINES) - 256 - len(alphabet) - len(merges)
    tokens = {SPACE * 2, SPACE * 4} | set(alphabet)

    split = {w: list(w) for w in words if len(w) > 1 and (w[0] != SPACE or w[1:2] != SPACE)}
    counts, where = collections.Counter(), collections.defaultdict(set)
    for w, symbols in split.items():
        for pair in zip(symbols, symbols[1:]):
            counts[pair] += words[w]
            where[pair].add(w)
    while room > 0 and counts:
        best = min(counts, key=lambda p: (-counts[p], p))
        if counts[best] < 2:
            break
        merges.append(best)
        joined = best[0] + best[1]
        room -= joined not in tokens
        tokens.add(joined)
        for w in sorted(where.pop(best)):
            symbols, n = split[w], words[w]
            for pair in zip(symbols, symbols[1:]):
                counts[pair] -= n
                if counts[pair] <= 0:
                    del counts[pair]
                where[pair].discard(w)
            i = 0
            while i + 1 < len(symbols):
                if (symbols[i], symbols[i + 1]) == best:
                    symbols[i:i + 2] = [joined]
                i += 1
            for pair in zip(symbols, symbols[1:]):
                counts[pair] += n
                where[pair].add(w)
    if room > 0:
        raise SystemExit(f"the texts are too poor for {size} tokens: {room} are left over")
    return Tokenizer(alphabet, merges)


if __name__ == "__main__":
    import chat
    import tasks
    from sizes import BOX

    corpus = (chat.render(sample) for sample in tasks.corpus(seed=1, count=60_000))
    trained = train(corpus, BOX.text.vocab_size)
    trained.save()
    print(f"{FILE}: {len(trained.tokens)} tokens, {len(trained.merges)} merges, {len(trained.characters)} characters")
