"""The text tasks: each is a generator of questions with their answers, by a random generator alone.

A task is a function (r, held) that returns a Turn. `held` chooses the side of the split: with it come only the cases that training never
sees (pairs of numbers, names, cities, combinations, phrasings), without it only the others. Where nothing is held out but the
seed (opposites, translations: there is nothing to generalise to) the model card says so.

    python3 tools/box/tasks.py [TASK]         prints a few samples
"""

import random

import tasks_talk
import tasks_tools
from turn import Turn, article, draw
from words import *  # noqa: F403


# ---- numbers ---------------------------------------------------------------------------------------------------------

ASK_SUM = ["What is {a} + {b}?", "What is {a} plus {b}?", "{a} + {b} = ?", "{a}+{b}", "Add {a} and {b}.", "How much is {a} plus {b}?",
           "Calculate {a} + {b}.",
           "Can you add {a} and {b}?"]
ASK_DIFFERENCE = ["What is {a} - {b}?", "What is {a} minus {b}?", "{a} - {b} = ?", "{a}-{b}", "Subtract {b} from {a}.",
                  "How much is {a} minus {b}?", "Calculate {a} - {b}.",
                  "Take {b} away from {a}."]


def number(r):
    return r.randrange(100) if r.random() < 0.8 else r.randrange(10)


def think_sum(a, b):
    ones, carry = a % 10 + b % 10, (a % 10 + b % 10) // 10
    out = f"Ones: {a % 10} + {b % 10} = {ones}. "
    return out + (f"Tens: {a // 10} + {b // 10} + {carry} = {a // 10 + b // 10 + carry}."
                  if carry else f"Tens: {a // 10} + {b // 10} = {a // 10 + b // 10}.")


def think_difference(a, b):
    if b > a:
        return f"{b} is larger than {a}, so the result is negative. {b} - {a} = {b - a}."
    ones, borrow = a % 10 - b % 10, a % 10 < b % 10
    if borrow:
        return f"Ones: {a % 10} + 10 - {b % 10} = {ones + 10}. Tens: {a // 10} - {b // 10} - 1 = {a // 10 - b // 10 - 1}."
    return f"Ones: {a % 10} - {b % 10} = {ones}. Tens: {a // 10} - {b // 10} = {a // 10 - b // 10}."


def arithmetic(r, held):
    def make():
        a, b, plus = number(r), number(r), r.random() < 0.5
        return (a, b, "+") if plus else ((a, b, "-") if a >= b or r.random() < 0.15 else (b, a, "-"))
    a, b, sign = draw(held, make, lambda c: f"{c[0]}{c[2]}{c[1]}")
    result = a + b if sign == "+" else a - b
    ask = r.choice(ASK_SUM if sign == "+" else ASK_DIFFERENCE).format(a=a, b=b)
    return Turn(ask, f"{a} {sign} {b} = {result}.", {"number": result}, (think_sum if sign == "+" else think_difference)(a, b))


def decimals(r, held):
    """Tenths below ten: as hard as whole numbers of two digits. With a calculator declared it is asked."""
    def make():
        a, b, plus = r.randrange(1, 100), r.randrange(1, 100), r.random() < 0.5
        return (a, b, "+") if plus or a < b else (a, b, "-")
    a, b, sign = draw(held, make, lambda c: f"tenths {c[0]}{c[2]}{c[1]}")
    tenths = lambda n: f"{n // 10}.{n % 10}" if n % 10 or r.random() < 0.2 else f"{n // 10}"
    x, y, result = tenths(a), tenths(b), a + b if sign == "+" else a - b
    shown = f"{result // 10}.{result % 10}" if result % 10 else f"{result // 10}"
    if "." not in x + y:
        x += ".0"
    ask = r.choice(ASK_SUM if sign == "+" else ASK_DIFFERENCE).format(a=x, b=y)
    if r.random() < 0.35:
        by_kind, listed = tasks_tools.declared(r, "calculator")
        calls = tasks_tools.call_to(tasks_tools.name_of(by_kind["calculator"]), expression=f"{x} {sign} {y}")
        return Turn(ask, "", {"calls": [c["function"] for c in calls]}, "I should use the calculator.", tools=listed, calls=calls)
    return Turn(ask, f"{x} {sign} {y} = {shown}.", {"contains": [f"= {shown}."]}, f"In tenths: {a} {sign} {b} = {result}.")


def times(r, held):
    """The times table up to ten, by heart."""
    a, b = r.randrange(0, 11), r.randrange(0, 11)
    ask = r.choice(["What is {a} * {b}?", "What is {a} times {b}?", "{a} * {b}", "How much is {a} times {b}?", "{a} * {b} = ?", "{a} x {b}",
                    "Multiply {a} by {b}.", "What is {a} x {b}?"]).format(a=a, b=b)
    return Turn(ask, f"{a} * {b} = {a * b}.", {"number": a * b}, f"{a} times {b} is {a * b}.")


def comparing(r, held):
    kind = r.randrange(4)
    if kind == 3:
        i, j = draw(held, lambda: r.sample(range(len(ANIMALS)), 2), lambda c: f"animal {c[0]} {c[1]}")
        large = r.random() < 0.5
        a, b = ANIMALS[i], ANIMALS[j]
        winner = ANIMALS[max(i, j) if large else min(i, j)]
        other = a if winner == b else b
        word = "bigger" if large else "smaller"
        return Turn(f"Which is {word}, {article(a)} or {article(b)}?", f"{article(winner, True)} is {word} than {article(other)}.",
                    {"contains": [f"{winner} is {word}"]}, f"{article(winner, True)} is {word}.")

    def make():
        a, b = number(r), number(r)
        return (a, b) if a != b else (a, b + 1)
    a, b = draw(held, make, lambda c: f"compare {c[0]} {c[1]}")
    large = r.random() < 0.5
    if kind == 2:
        word, yes = ("more", a > b) if large else ("less", a < b)
        ask = r.choice(["Is {a} {w} than {b}?", "Is it true that {a} is {w} than {b}?"]).format(a=a, b=b, w=word)
        truth = f"{a} is {'more' if a > b else 'less'} than {b}."
        return Turn(ask, ("Yes, " if yes else "No, ") + truth, {"contains": ["Yes," if yes else "No,", truth]}, truth)
    word = r.choice(["larger", "bigger", "greater"] if large else ["smaller", "less"])
    best, other = (max, min)[not large](a, b), (min, max)[not large](a, b)
    ask = r.choice(["Which is {w}, {a} or {b}?", "Which number is {w}: {a} or {b}?", "What is {w}, {a} or {b}?"]).format(a=a, b=b, w=word)
    return Turn(ask, f"{best} is {word} than {other}.", {"contains": [f"{best} is {word} than {other}"]}, f"{max(a, b)} > {min(a, b)}.")


def counting(r, held):
    kind = r.randrange(4)
    if kind == 3:
        n, word = r.randrange(1, 9), r.choice(FRUIT + ANIMALS)
        words = r.choices(FRUIT + COLOURS, k=n) if r.random() < 0.5 else [word] * n
        return Turn(f"How many words are in this list: {', '.join(words)}?",
                    f"There {'is 1 word' if n == 1 else f'are {n} words'} in the list.", {"number": n},
                    ", ".join(f"{i + 1} {w}" for i, w in enumerate(words)) + ".")

    def make():
        step = r.choice([1, 1, 2, 5, 10]) if kind != 1 else 1
        n = r.randrange(3, 11)
        start = r.randrange(0, 30) if step == 1 else step * r.randrange(0, 4)
        return start, start + step * n, step
    low, high, step = draw(held, make, lambda c: f"count {c}")
    numbers = list(range(low, high + 1, step))
    if kind == 1:
        numbers.reverse()
        ask = r.choice(["Count down from {h} to {l}.", "Count backwards from {h} to {l}."])
    elif step > 1:
        ask = r.choice(["Count from {l} to {h} in steps of {s}.", "Count by {s}s from {l} to {h}."])
    else:
        ask = r.choice(["Count from {l} to {h}.", "Please count from {l} to {h}.", "Can you count from {l} to {h}?"])
    text = ", ".join(map(str, numbers)) + "."
    return Turn(ask.format(l=low, h=high, s=step), text, {"exact": [text]}, f"I start at {numbers[0]} and stop at {numbers[-1]}.")


# ---- words -----------------------------------------------------------------------------------------------------------

def spelling(r, held):
    word = r.choice(SPELLED + OBJECTS + ANIMALS)
    letters = "-".join(word)
    kind = r.randrange(5)
    if kind == 0:
        return Turn(f"Which word is spelled {letters}?", f"The word is {word}.", {"contains": [word]}, f"{letters} is {word}.")
    if kind == 1:
        last = r.random() < 0.5
        letter = word[-1] if last else word[0]
        place = "last" if last else "first"
        return Turn(f"What is the {place} letter of {word}?", f"The {place} letter of {word} is {letter}.", {"contains": [f"is {letter}."]},
                    letters)
    if kind == 2:
        n = len(word)
        return Turn(r.choice([f"How many letters does {word} have?", f"How many letters are in the word {word}?"]),
                    f"{word[0].upper() + word[1:]} has {n} letters.",
                    {"number": n}, " ".join(f"{i + 1} {c}" for i, c in enumerate(word)))
    ask = r.choice(["Spell the word {w}.", "How do you spell {w}?", "Spell {w}.", "Can you spell {w} for me?"]).format(w=word)
    return Turn(ask, letters + ".", {"exact": [letters + ".", letters]}, f"The word has {len(word)} letters.")


def dates(r, held):
    kind = r.randrange(6)
    names, what = (DAYS, "day") if kind in (0, 2) else (MONTHS, "month")
    n = len(names)
    if kind == 4:
        i = r.randrange(12)
        days = MONTH_DAYS[i]
        extra = " In a leap year it has 29." if days == 28 else ""
        return Turn(r.choice([f"How many days does {MONTHS[i]} have?", f"How many days are in {MONTHS[i]}?"]),
                    f"{MONTHS[i]} has {days} days.{extra}",
                    {"contains": [f"has {days} days"]}, f"{MONTHS[i]} is month {i + 1}.")
    if kind == 5:
        i, of_year = r.randrange(n), r.random() < 0.5
        if of_year:
            return Turn(f"Which is the {ORDINALS[i]} month of the year?", f"The {ORDINALS[i]} month is {MONTHS[i]}.", {"contains": [MONTHS[i]]},
                        ", ".join(MONTHS[:i + 1]) + ".")
        return Turn(f"Which month of the year is {MONTHS[i]}?", f"{MONTHS[i]} is the {ORDINALS[i]} month.", {"contains": [ORDINALS[i]]},
                    ", ".join(MONTHS[:i + 1]) + ".")
    i, after = r.randrange(n), r.random() < 0.5
    steps = r.choice([1, 1, 1, 2, 3]) if kind in (0, 1) else 1
    j = (i + (steps if after else -steps)) % n
    side = "after" if after else "before"
    if steps == 1:
        ask = r.choice([f"What {what} comes {side} {names[i]}?", f"Which {what} is {side} {names[i]}?",
                        f"What is the {what} {side} {names[i]}?"])
        return Turn(ask, f"{names[j]} comes {side} {names[i]}.", {"contains": [f"{names[j]} comes"]},
                    f"One {what} {side} {names[i]} is {names[j]}.")
    way = [names[(i + (k if after else -k)) % n] for k in range(steps + 1)]
    return Turn(f"What {what} is {DIGITS[steps]} {what}s {side} {names[i]}?", f"{names[j]} is {DIGITS[steps]} {what}s {side} {names[i]}.",
                {"contains": [f"{names[j]} is"]},
                ", ".join(way) + ".")


OPPOSITE = {}
for _a, _b in OPPOSITES:
    OPPOSITE.setdefault(_a, _b)
for _a, _b in OPPOSITES:
    OPPOSITE.setdefault(_b, _a)


def opposites(r, held):
    word = r.choice(sorted(OPPOSITE))
    ask = r.choice(["What is the opposite of {w}?", "What's the opposite of {w}?", "Tell me the opposite of {w}.",
                    "Give me the opposite of the word {w}."]).format(w=word)
    return Turn(ask, f"The opposite of {word} is {OPPOSITE[word]}.", {"contains": [f"is {OPPOSITE[word]}."]},
                f"{word} and {OPPOSITE[word]} are opposites.")


def translating(r, held):
    word = r.choice(sorted(TRANSLATIONS))
    k = r.randrange(3)
    language, foreign = LANGUAGES[k], TRANSLATIONS[word][k]
    if r.random() < 0.3:
        return Turn(r.choice([f"What does {foreign} mean in English?", f"What is the {language} word {foreign} in English?"]),
                    f"{foreign} is {language} for {word}.", {"contains": [f"for {word}"]}, f"{foreign} is {word}.")
    ask = r.choice(["How do you say {w} in {l}?", "Translate {w} into {l}.", "What is {w} in {l}?",
                    "What is the {l} word for {w}?"]).format(w=word, l=language)
    return Turn(ask, f"In {language}, {word} is {foreign}.", {"contains": [foreign]}, f"{word} is {foreign}.")


# ---- the mixture -----------------------------------------------------------------------------------------------------

# task: generator and share
TASKS = {
    "small talk": (tasks_talk.small_talk, 10), "about": (tasks_talk.about, 10), "story": (tasks_talk.story, 9),
    "modesty": (tasks_talk.modesty, 9), "counting": (counting, 5), "spelling": (spelling, 8), "arithmetic": (arithmetic, 16),
    "comparing": (comparing, 6), "dates": (dates, 5), "opposites": (opposites, 4), "translating": (translating, 6),
    "tools": (tasks_tools.tools, 14), "tool results": (tasks_tools.results, 10), "json": (tasks_tools.as_json, 8),
    "decimals": (decimals, 6), "times": (times, 4), "nonsense": (tasks_talk.nonsense, 4),
}
SYSTEMS = ["You are a helpful assistant.", "Be brief.", "Answer in one sentence.", "You are gemmule's small model.", "Be friendly."]


CASE_MATTERS = ("tools", "tool results", "translating", "small talk", "nonsense")  # what must be repeated as it was written
MISTYPED = """what which tell about story please thank thanks hello calculate translate count spell letters number numbers opposite weather today joke colour
favourite much many model program browser time plus minus there your you the""".split()


def mistyped(r, text):
    """One of the words that only phrase a question, with a letter lost, doubled or swapped."""
    words = text.split(" ")
    found = [i for i, w in enumerate(words) if w.lower() in MISTYPED]
    if not found:
        return text
    i = r.choice(found)
    w, at, kind = words[i], r.randrange(len(words[i]) - 1), r.randrange(3)
    words[i] = w[:at] + (w[at + 1:] if kind == 0 else w[at] + w[at:] if kind == 1 else w[at + 1] + w[at] + w[at + 2:])
    return " ".join(words)


def sloppy(r, text, case_matters):
    """How people type: without capitals, without the last sign, with a please, with a slip."""
    p = r.random()
    if p < 0.12:
        text = text[0].lower() + text[1:]
    elif p < 0.18 and not case_matters:
        text = text.lower() if r.random() < 0.8 else text.upper()
    if r.random() < 0.1 and len(text) > 1 and text[-1] in "?.":
        text = text[:-1]
    if r.random() < 0.06:
        text = mistyped(r, text)
    if r.random() < 0.04:
        text = r.choice(["Please: ", "Hey, ", "Okay. "]) + text
    return text


def earlier_turns(r, held):
    """What was said before does not matter."""
    messages = []
    for _ in range(r.choice([1, 1, 2, 3, 5])):
        earlier = TASKS[r.choice(["small talk", "about", "arithmetic", "opposites", "dates", "counting", "spelling", "nonsense"])][0](r, held)
        messages += [{"role": "user", "content": earlier.question}, {"role": "assistant", "content": earlier.answer}]
    return messages


def make_sample(name, r, held):
    """One conversation: {"task", "messages", "tools", "think", "answer", "check"}."""
    turn = TASKS[name][0](r, held)
    think = bool(turn.thought) and r.random() < 0.25
    messages, tools = [], turn.tools
    system = turn.system or (r.choice(SYSTEMS) if r.random() < 0.08 else "")
    if system:
        messages.append({"role": "system", "content": system})
    if r.random() < 0.2 and not tools:
        messages += earlier_turns(r, held)
    question = turn.question if name == "json" else sloppy(r, turn.question, name in CASE_MATTERS)
    messages.append({"role": "user", "content": question})
    if turn.history:
        messages += turn.history
        if think:
            messages[-2] = dict(messages[-2], thinking=turn.call_thought)
    answer = {"role": "assistant", "content": turn.answer}
    if turn.calls:
        answer = {"role": "assistant", "content": "", "tool_calls": turn.calls}
    check = dict(turn.check)
    if think:
        answer["thinking"] = turn.thought
        check["thinks"] = True
    sample = {"task": name, "messages": messages, "think": think, "answer": answer, "check": check}
    if tools:
        sample["tools"] = tools
    return sample


def sample(r, held=False):
    names = list(TASKS)
    return make_sample(r.choices(names, [TASKS[n][1] for n in names])[0], r, held)


def corpus(seed, count):
    """Samples for the vocabulary's training, with what pictures and sounds are answered with."""
    import captions

    r = random.Random(f"corpus {seed}")
    for i in range(count):
        yield captions.text_only(r) if i % 6 == 0 else sample(r)


if __name__ == "__main__":
    import sys

    import chat

    r = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    for name in [sys.argv[1]] if len(sys.argv) > 1 else TASKS:
        for held in (False, True):
            s = make_sample(name, r, held)
            print(f"--- {name}{' (held out)' if held else ''}\n{chat.prompt(s)}⟹{chat.answer(s)}\n{s['check']}")
