"""Long conversations: many turns that mix the text tasks, with or without tools, as people have them in a chat.

    python3 tools/box/talks.py [SEED]         prints one

All answers of such a conversation are learned from, not only the last one. What people do in a chat and no single question shows is here: sums that
lean on the one before, a name that is asked for later, "yes" to an offered story, a city behind a question about another, tools that fail.
"""

import random

import tasks
import tasks_talk
import tasks_tools
from turn import aside, article

TURNS = [3, 5, 8, 12, 16, 20, 20, 24, 30, 50]
MOST_CHARACTERS = 5600  # what 2048 tokens hold in nearly all cases

# kind of turn: share
PLAIN = {"small talk": 16, "about": 7, "story": 4, "modesty": 8, "counting": 4, "spelling": 7, "arithmetic": 16, "comparing": 4, "dates": 4, "opposites": 4,
         "translating": 5, "decimals": 5, "times": 4, "nonsense": 7, "name": 5, "again": 4, "sum again": 7}
WITH_TOOLS = {"tool": 34}
SUMS = ("arithmetic", "decimals", "times", "sum again")

ASK_NAME = ["What is my name?", "Do you remember my name?", "Do you know my name?", "Who am I?", "What am I called?", "Tell me my name."]
NO_NAME = "You have not told me your name."
OFFERS = ("Would you like a short story?",)


class Talk:
    def __init__(self, r, held, kinds=(), turns=None):
        self.r, self.held = r, held
        self.tools = {k: tasks_tools.KINDS[k](r) for k in kinds}
        self.messages, self.name, self.result, self.about, self.check, self.turns = [], "", None, None, {}, 0
        self.kind = ""
        shares = dict(PLAIN) | (WITH_TOOLS if kinds else {})
        self.kinds, self.shares = list(shares), list(shares.values())

    def say(self, question, answer, check, case_matters=False):
        self.messages += [{"role": "user", "content": tasks.sloppy(self.r, question, case_matters)}, {"role": "assistant", "content": answer}]
        self.check = check

    def last_answer(self):
        return self.messages[-1]["content"] if self.messages else ""

    def use_tool(self, kind, asked, plainly=False):
        """asked: question, calls, thought, what it is about. `plainly`: typed without a slip, since all of it is repeated."""
        question, calls, _, what = asked
        content, answer, check, _ = tasks_tools.outcome(self.r, kind, what)
        self.messages += [{"role": "user", "content": question if plainly else tasks.sloppy(self.r, question, True)},
                          {"role": "assistant", "content": "", "tool_calls": calls},
                          {"role": "tool", "tool_name": tasks_tools.name_of(self.tools[kind]), "content": content}, {"role": "assistant", "content": answer}]
        self.about, self.check = (kind, what), check

    def tool(self):
        r, kind = self.r, self.r.choice(list(self.tools))
        about = self.about
        if about and about[0] in self.tools and about[0] != "calculator" and about[1] not in ("", "date") and r.random() < 0.3:
            kind, where = about[0], tasks_tools.city(r, self.held)  # "And in Rome?"
            ask = r.choice(["And in {c}?", "What about {c}?", "and {c}?", "And how about {c}?"]).format(c=where)
            return self.use_tool(kind, (ask, tasks_tools.call_to(tasks_tools.name_of(self.tools[kind]), city=where), "", where))
        if kind == "clock" and tasks_tools.needs_city(self.tools[kind]) and r.random() < 0.4:
            self.say(tasks_tools.phrase(r, self.held, tasks_tools.ASK_LOCAL_TIME), tasks_tools.WHICH_CITY, {"contains": ["which city"]})
            where = tasks_tools.city(r, self.held)
            ask = r.choice(["{c}", "In {c}.", "{c}.", "In {c}"]).format(c=where)
            return self.use_tool(kind, (ask, tasks_tools.call_to(tasks_tools.name_of(self.tools[kind]), city=where), "", where), True)
        return self.use_tool(kind, tasks_tools.request(r, self.held, kind, self.tools))

    def sum_again(self):
        """A sum that begins with "And", or one that goes on from the last result."""
        r, plus = self.r, self.r.random() < 0.5
        onward = self.result is not None and 0 <= self.result < 100 and r.random() < 0.4
        sign, word = ("+", "plus") if plus else ("-", "minus")

        def make():
            a, b = self.result if onward else r.randrange(100), r.randrange(100)
            return (a, b) if plus or b <= a else (a, r.randrange(a + 1)) if onward else (b, a)
        for _ in range(200):
            a, b = make()
            if aside(f"{a}{sign}{b}") == self.held:
                break
        else:
            return self.plain("arithmetic")  # nothing that can be done to this result lies on this side
        if onward:
            ask = r.choice(["Now add {b}.", "And plus {b}?", "Add {b} to that.", "plus {b}"] if plus else ["Now subtract {b}.", "And minus {b}?", "minus {b}",
                                                                                                    "Take away {b}."])
        else:
            ask = r.choice(["And {a} {s} {b}?", "and {a} {w} {b}", "Now {a} {s} {b}.", "What about {a} {s} {b}?", "And what is {a} {w} {b}?", "Then {a} {s} {b}?"])
        ask = ask.format(a=a, b=b, s=sign, w=word)
        self.result = a + b if plus else a - b
        if "calculator" in self.tools:
            calls = tasks_tools.call_to(tasks_tools.name_of(self.tools["calculator"]), expression=f"{a} {sign} {b}")
            self.use_tool("calculator", (ask, calls, "", (f"{a} {sign} {b}", self.result)))
            self.result = None if "sorry" in self.last_answer() else self.result
        else:
            self.say(ask, f"{a} {sign} {b} = {self.result}.", {"number": self.result})

    def plain(self, name):
        r, held = self.r, self.held
        if name in ("arithmetic", "decimals", "times") and "calculator" in self.tools:
            return self.use_tool("calculator", tasks_tools.request(r, held, "calculator", self.tools, small=name == "arithmetic"))
        make = tasks.TASKS[name][0]
        turn = tasks_talk.modesty(r, held, self.tools) if name == "modesty" else make(r, held)
        while turn.tools:  # decimals may bring a calculator of their own
            turn = make(r, held)
        self.say(turn.question, turn.answer, turn.check, name in tasks.CASE_MATTERS)
        self.result = turn.check["number"] if name == "arithmetic" else self.result
        if turn.answer.startswith("Nice to meet you, ") or turn.answer.startswith("Your name is "):
            self.name = turn.answer.split(" ")[-1][:-1]

    def another_word(self):
        """ "And cat?" after a translation or an opposite; False: the last answer was neither."""
        r, last = self.r, self.last_answer().split(" ")
        if last[0] == "In" and len(last) > 4 and last[1][:-1] in tasks.LANGUAGES:
            word = r.choice(sorted(tasks.TRANSLATIONS))
            foreign = tasks.TRANSLATIONS[word][tasks.LANGUAGES.index(last[1][:-1])]
            self.say(r.choice(["And {w}?", "and {w}", "What about {w}?"]).format(w=word), f"In {last[1]} {word} is {foreign}.", {"contains": [foreign]}, True)
        elif last[:2] == ["The", "opposite"]:
            word = r.choice(sorted(tasks.OPPOSITE))
            self.say(r.choice(["And of {w}?", "And {w}?", "and {w}"]).format(w=word), f"The opposite of {word} is {tasks.OPPOSITE[word]}.",
                     {"contains": [f"is {tasks.OPPOSITE[word]}."]}, True)
        else:
            return False
        return True

    def take_turn(self, kind):
        r = self.r
        if r.random() < 0.3 and self.another_word():
            return
        if self.last_answer().endswith(OFFERS) and r.random() < 0.5:
            hero = r.choice(tasks_talk.HEROES)
            about = r.random() < 0.4
            ask = f"Yes, about {article(hero)}." if about else r.choice(["yes", "Yes, please.", "Yes!", "sure", "Yes, tell me one.", "ok", "Please do."])
            text = tasks_talk.tell(r, hero, r.choice(tasks_talk.PLACES), r.choice(tasks_talk.OBJECTS))
            self.say(ask, text, {"contains": [hero] if about else ["the "]})
        elif kind == "tool":
            self.tool()
        elif kind == "sum again":
            self.sum_again()
        elif kind == "again" and len(self.messages) >= 2 and self.messages[-2]["role"] == "user":
            self.messages += [dict(m) for m in self.messages[-2:]]  # the same question once more
        elif kind == "name" and (self.name or r.random() < 0.3):
            self.say(r.choice(ASK_NAME), f"Your name is {self.name}." if self.name else NO_NAME, {"contains": [self.name or "not told me"]})
        elif kind == "name":
            self.name = tasks_talk.name(r, self.held)
            ask = r.choice(["My name is {n}.", "I am {n}.", "Hello, I am {n}!", "Hi, my name is {n}.", "Call me {n}.", "You can call me {n}."])
            self.say(ask.format(n=self.name), f"Nice to meet you, {self.name}!", {"contains": [self.name]}, True)
        else:
            self.plain("small talk" if kind == "again" else kind)
        if kind not in ("arithmetic", "sum again", "again") and r.random() < 0.7:
            self.result = None  # nobody adds to a sum of long ago
        if kind != "tool":
            self.about = None

    def characters(self):
        return sum(len(m.get("content") or "") + 28 + len(str(m.get("tool_calls", ""))) // 2 for m in self.messages) + 420 * len(self.tools)

    def go_on(self, turns, most=MOST_CHARACTERS):
        while turns > 0 and (not self.messages or self.characters() < most):
            self.take_turn(self.r.choices(self.kinds, self.shares)[0])
            turns -= 1
        return self

    def sample(self, task="talk"):
        """With all answers to be learned from; the last one stands aside."""
        system = [{"role": "system", "content": self.r.choice(tasks.SYSTEMS)}] if self.r.random() < 0.08 else []
        sample = {"task": task, "messages": system + self.messages[:-1], "think": False, "answer": self.messages[-1], "check": self.check, "all": True}
        return sample | ({"tools": list(self.tools.values())} if self.tools else {})


def some_tools(r):
    """Those of the app in half of the conversations, any others in a sixth."""
    p = r.random()
    kinds = ["clock", "calculator"] if p < 0.45 else r.sample(list(tasks_tools.KINDS), r.choice([1, 2, 3])) if p < 0.6 else []
    if r.random() < 0.3:
        kinds.reverse()
    return kinds


def talk(r, held=False, most=MOST_CHARACTERS):
    return Talk(r, held, some_tools(r)).go_on(r.choice(TURNS), most).sample()


if __name__ == "__main__":
    import sys

    import chat

    print(chat.render(talk(random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0))))
