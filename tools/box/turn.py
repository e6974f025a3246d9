"""What a task makes, and how the cases are split between training and the held-out set."""

import zlib
from dataclasses import dataclass, field


@dataclass
class Turn:
    question: str
    answer: str
    check: dict  # how an answer is scored: see score.py
    thought: str = ""  # what a model that thinks first may think; empty: no thinking for this one
    system: str = ""
    tools: list = field(default_factory=list)
    calls: list = field(default_factory=list)  # the answer, where it is a call
    history: list = field(default_factory=list)  # between question and answer: a call and the tool's result
    call_thought: str = ""  # what was thought before that call


def aside(key, percent=10):
    """Whether this case belongs to the held-out side: decided by its text, so no two programs disagree."""
    return zlib.crc32(key.encode()) % 100 < percent


def draw(held, make, key, percent=10):
    """Draws until the case lies on the wanted side."""
    while True:
        case = make()
        if aside(key(case), percent) == held:
            return case


def article(noun, capital=False):
    text = ("an " if noun[0] in "aeiou" else "a ") + noun
    return text[0].upper() + text[1:] if capital else text
