"""What is asked about pictures and sounds, and what is answered. The pictures and sounds themselves are made elsewhere."""

from words import COLOURS, DIGITS, SPOKEN

SHAPES = ["circle", "square", "triangle", "star", "cross"]
SIZES = ["small", "large"]
PLACES = ["top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right"]
BACKGROUNDS = ["white", "black", "grey", "pink", "brown"]
AT = {"left": "on the left", "right": "on the right", "middle": "in the middle"}


def at(place):
    return AT.get(place, "at the " + place)


def one(shape):
    return f"{shape['size']} {shape['colour']} {shape['shape']}"


def joined(parts):
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


# ---- pictures --------------------------------------------------------------------------------------------------------

def scene(r, easy=0.0):
    """Up to three shapes in different places, in reading order, none in the background's colour. `easy`: the share of those with one."""
    background = r.choice(BACKGROUNDS)
    places = sorted(r.sample(range(9), 1 if r.random() < easy else r.choice([1, 2, 2, 3, 3])))
    colours = [c for c in COLOURS if c != background]
    return {"background": background, "shapes": [{"shape": r.choice(SHAPES), "colour": r.choice(colours), "size": r.choice(SIZES),
                                                  "place": PLACES[p]} for p in places]}


def about_scene(r, what):
    """(question, answer, check)"""
    shapes = what["shapes"]
    kinds = [s["shape"] for s in shapes]
    single = [s for s in shapes if kinds.count(s["shape"]) == 1]
    kind = r.random()
    if kind < 0.6:
        seen = "I see " + joined([f"a {one(s)} {at(s['place'])}" for s in shapes])  # of the background any is right
        return (r.choice(["What is in the picture?", "What do you see?", "Describe the picture.", "What does the picture show?",
                          "What is in this image?"]),
                f"{seen}, on a {what['background']} background.", {"exact": [f"{seen}, on a {b} background." for b in BACKGROUNDS]})
    if kind < 0.7:
        n = len(shapes)
        return (r.choice(["How many shapes are in the picture?", "How many shapes do you see?"]),
                f"There {'is 1 shape' if n == 1 else f'are {n} shapes'}.", {"number": n})
    if kind < 0.75 or not single:
        return "What colour is the background?", f"The background is {what['background']}.", {"contains": [f"is {what['background']}"]}
    s = r.choice(single)
    if kind < 0.83:
        return f"What colour is the {s['shape']}?", f"The {s['shape']} is {s['colour']}.", {"contains": [f"is {s['colour']}"]}
    if kind < 0.92:
        return f"Where is the {s['shape']}?", f"The {s['shape']} is {at(s['place'])}.", {"contains": [f"is {at(s['place'])}."]}
    return f"What is {at(s['place'])}?", f"A {one(s)}.", {"contains": [one(s)]}


def about_number(r, digits):
    ask = r.choice(["Which number do you see?", "What number is this?", "Read the number.", "What number is in the picture?",
                    "Which number is written here?"])
    return ask, f"The number is {digits}.", {"number": int(digits)}


def written_number(r, easy=0.0):
    n = 1 if r.random() < easy else r.choice([1, 2, 3, 3, 4, 4, 4])
    return str(r.randrange(1, 10)) + "".join(str(r.randrange(10)) for _ in range(n - 1))


def scene_marks(what):
    return " ".join(f"{one(s)} {s['place']}" for s in what["shapes"])


# ---- sounds ----------------------------------------------------------------------------------------------------------

def spoken_digits(r, easy=0.0):
    return [r.randrange(10) for _ in range(1 if r.random() < easy else r.choice([1, 2, 3, 3, 4, 4, 5, 6]))]


def about_digits(r, digits):
    ask = r.choice(["Which digits do you hear?", "Write down the digits.", "What digits are spoken?", "Which numbers do you hear?"])
    text = " ".join(map(str, digits))
    return ask, text + ".", {"exact": [text + ".", text]}


def spoken_words(r, easy=0.0):
    return r.sample(SPOKEN, 1 if r.random() < easy else r.choice([1, 1, 2, 2, 3]))


def about_words(r, words):
    ask = r.choice(["What do you hear?", "Which words do you hear?", "Write down what is said.", "What is said?", "Transcribe this."])
    text = " ".join(words)
    return ask, text[0].upper() + text[1:] + ".", {"exact": [text[0].upper() + text[1:] + ".", text]}


def about_tone(r, rising):
    ask = r.choice(["Does the tone rise or fall?", "Is the tone rising or falling?", "Does the sound go up or down?"])
    word = "rising" if rising else "falling"
    return ask, f"The tone is {word}.", {"contains": [word]}


def sample_of(kind, ask, answer, check, task, marks=""):
    """`marks`: the words that the picture or sound is about, whatever is asked: a hint for the towers while they are young."""
    return {"task": task, "marks": marks, "messages": [{"role": "user", "content": [{"type": kind}, {"type": "text", "text": ask}]}], "think": False,
            "answer": {"role": "assistant", "content": answer}, "check": check}


THOUGHTS = {"image": "I look at the picture.", "audio": "I listen to the sound."}


def thoughtful(r, sample):
    """Now and then with thinking on."""
    if r.random() < 0.1:
        kind = sample["messages"][0]["content"][0]["type"]
        sample |= {"think": True, "answer": sample["answer"] | {"thinking": THOUGHTS[kind]}, "check": sample["check"] | {"thinks": True}}
    return sample


def text_only(r):
    """A sample without its picture or sound, for the vocabulary."""
    kind = r.randrange(4)
    if kind == 0:
        return sample_of("image", *about_scene(r, scene(r)), "shapes")
    if kind == 1:
        return sample_of("image", *about_number(r, written_number(r)), "number")
    if kind == 2:
        return sample_of("audio", *about_words(r, spoken_words(r)), "words")
    return sample_of("audio", *about_digits(r, spoken_digits(r)), "digits")
