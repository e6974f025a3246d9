"""Tasks with tools and with JSON: a call when one is needed, an answer from a tool's result, and data in the shape that is asked for."""

import json

import tasks_talk
from turn import Turn, article, draw
from words import *  # noqa: F403

# ---- tools -----------------------------------------------------------------------------------------------------------


def function(name, description, properties, required):
    schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def calculator(r):
    name = r.choice(["calculator", "calculator", "calculate"])
    return function(name, r.choice(["Computes an expression", "Calculates the value of an expression", "A calculator"]),
                    {"expression": {"type": "string", "description": r.choice(["The expression", "What to compute, for example 2 * 3"])}},
                    ["expression"])


def weather(r):
    name = r.choice(["weather", "weather", "get_weather"])
    return function(name, r.choice(["The weather in a city", "Gets the current weather", "Tells the weather"]),
                    {"city": {"type": "string", "description": r.choice(["The city", "Name of the city"])}}, ["city"])


def clock(r):
    name = r.choice(["clock", "clock", "get_time"])
    return function(name, r.choice(["The time in a city", "Tells the current time", "Gets the time"]),
                    {"city": {"type": "string", "description": r.choice(["The city", "Name of the city"])}}, ["city"])


def name_of(tool):
    return tool["function"]["name"]


def city(r, held):
    return r.choice(HELD_CITIES) if held else r.choice(CITIES) if r.random() < 0.4 else tasks_talk.made_up(r)


OPERATORS = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}


def expression(r, held):
    """Any: with a calculator at hand it is always asked."""
    def make():
        top = r.choice([100, 1000, 1000])
        return r.randrange(2, top), r.choice("+-*/*+"), r.randrange(2, top)
    a, sign, b = draw(held, make, lambda c: f"{c}")
    return a, sign, b, {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign]


def shown(x):
    return str(int(x)) if x == int(x) else f"{x:.2f}".rstrip("0").rstrip(".")


def call_to(name, **arguments):
    return [{"type": "function", "function": {"name": name, "arguments": arguments}}]


def request(r, held, kind, tools):
    """A question for the tool of this kind, its call, and a thought."""
    tool = tools[kind]
    if kind == "calculator":
        a, sign, b, result = expression(r, held)
        word = OPERATORS[sign]
        ask = r.choice([f"What is {a} {sign} {b}?", f"What is {a} {word} {b}?", f"Calculate {a} {sign} {b}.",
                        f"How much is {a} {word} {b}?", f"{a} {sign} {b} = ?"])
        return ask, call_to(name_of(tool), expression=f"{a} {sign} {b}"), "I should use the calculator.", (a, sign, b, result)
    where = city(r, held)
    if kind == "weather":
        ask = r.choice(["What is the weather in {c}?", "How is the weather in {c}?", "Is it raining in {c}?",
                        "What's the weather like in {c} today?", "Do I need an umbrella in {c}?",
                        "Tell me the weather in {c}."])
        return ask.format(c=where), call_to(name_of(tool), city=where), f"I should ask for the weather in {where}.", where
    ask = r.choice(["What time is it in {c}?", "What's the time in {c}?", "How late is it in {c}?", "Tell me the time in {c}.",
                    "Which time is it now in {c}?"])
    return ask.format(c=where), call_to(name_of(tool), city=where), f"I should ask for the time in {where}.", where


KINDS = {"calculator": calculator, "weather": weather, "clock": clock}


def declared(r, needed):
    """The tool that is needed among others, in any order; and all of them by kind."""
    kinds = [needed] + [k for k in KINDS if k != needed and r.random() < 0.4]
    r.shuffle(kinds)
    tools = {k: KINDS[k](r) for k in kinds}
    return tools, list(tools.values())


def tools(r, held):
    kind = r.choice(list(KINDS))
    by_kind, listed = declared(r, kind)
    if r.random() < 0.2:  # tools are there, but the question needs none
        turn = r.choice([tasks_talk.small_talk, tasks_talk.about])(r, held)
        turn.tools = listed
        turn.check = {"calls": []}  # what it says instead is scored by the other tasks
        turn.thought = "No tool is needed."
        return turn
    ask, calls, thought, _ = request(r, held, kind, by_kind)
    return Turn(ask, "", {"calls": [c["function"] for c in calls]}, thought, tools=listed, calls=calls)


CONDITIONS = {"sunny": "It is sunny in {c}, {t} degrees.", "rainy": "It is rainy in {c}, {t} degrees. Take an umbrella.",
              "cloudy": "It is cloudy in {c}, {t} degrees.",
              "windy": "It is windy in {c}, {t} degrees.", "snowy": "It is snowy in {c}, {t} degrees. Dress warmly."}


def results(r, held):
    kind = r.choice(list(KINDS))
    by_kind, listed = declared(r, kind)
    ask, calls, call_thought, what = request(r, held, kind, by_kind)
    if kind == "calculator":
        a, sign, b, result = what
        value = shown(result)
        content = r.choice([f'{{"result": {value}}}', value, f'{{"value": {value}}}'])
        answer, check, thought = f"{a} {sign} {b} = {value}.", {"contains": [value]}, f"The result is {value}."
    elif kind == "weather":
        condition, degrees = r.choice(list(CONDITIONS)), r.randrange(-9, 39)
        content = r.choice([f'{{"temperature": {degrees}, "condition": "{condition}"}}',
                            f'{{"condition": "{condition}", "temperature": {degrees}}}', f"{condition}, {degrees} degrees"])
        answer, check = CONDITIONS[condition].format(c=what, t=degrees), {"contains": [condition, what, f"{degrees} degrees"]}
        thought = f"It is {condition} with {degrees} degrees."
    else:
        time = f"{r.randrange(24):02}:{r.randrange(60):02}"
        content = r.choice([f'{{"time": "{time}"}}', time])
        answer, check, thought = f"It is {time} in {what}.", {"contains": [time, what]}, f"The time is {time}."
    if r.random() < 0.06:
        content, answer, check, thought = '{"error": "not available"}', "I am sorry, the tool did not answer.", {"contains": ["sorry"]}, "The tool has failed."
    history = [{"role": "assistant", "content": "", "tool_calls": calls},
               {"role": "tool", "tool_name": name_of(by_kind[kind]), "content": content}]
    return Turn(ask, answer, check, thought, tools=listed, history=history, call_thought=call_thought)


# ---- JSON by schema --------------------------------------------------------------------------------------------------

TYPES = {str: "string", int: "integer", bool: "boolean"}


def person(r, held):
    name, age, where, job = tasks_talk.name(r, held), r.randrange(5, 90), city(r, held), r.choice(JOBS)
    return [("name", name), ("age", age), ("city", where), ("job", job)], {
        ("name", "age"): f"{name} is {age} years old.", ("name", "city"): f"{name} lives in {where}.",
        ("name", "job"): f"{name} is {article(job)}.",
        ("name", "age", "city"): f"{name} is {age} years old and lives in {where}.",
        ("name", "job", "city"): f"{name} is {article(job)} from {where}.",
        ("name", "age", "job"): f"{name}, {age}, is {article(job)}.",
    }


def thing(r, held):
    what, colour, price, new = r.choice(THINGS), r.choice(COLOURS), r.randrange(1, 100), r.random() < 0.5
    state = "new" if new else "used"
    return [("item", what), ("colour", colour), ("price", price), ("new", new)], {
        ("item", "colour"): f"The {what} is {colour}.", ("item", "price"): f"The {what} costs {price} euros.",
        ("item", "colour", "price"): f"The {colour} {what} costs {price} euros.",
        ("item", "price", "new"): f"The {state} {what} costs {price} euros.",
    }


def meeting(r, held):
    day, hour, who = r.choice(DAYS), r.randrange(8, 20), tasks_talk.name(r, held)
    return [("day", day), ("hour", hour), ("with", who)], {
        ("day", "hour"): f"We meet on {day} at {hour} o'clock.", ("day", "hour", "with"): f"On {day} at {hour} o'clock I meet {who}.",
        ("day", "with"): f"I meet {who} on {day}.",
    }


def as_json(r, held):
    fields, texts = r.choice([person, thing, meeting])(r, held)
    values = dict(fields)
    keys, text = r.choice(sorted(texts.items()))
    keys = list(keys)
    if r.random() < 0.5:
        r.shuffle(keys)
    wanted = {k: values[k] for k in keys}
    schema = {"type": "object", "properties": {k: {"type": TYPES[type(v)]} for k, v in wanted.items()}}
    if r.random() < 0.6:
        schema["required"] = keys
    schema = json.dumps(schema)
    answer = json.dumps(wanted, ensure_ascii=False)
    order = r.choice(["Answer as JSON with this schema: {s}", "Reply with JSON that matches this schema: {s}",
                      "Give me JSON by this schema: {s}"]).format(s=schema)
    check, thought = {"json": wanted}, "I need " + ", ".join(keys) + "."
    where = r.random()
    if where < 0.3:
        return Turn(text, answer, check, thought, system=order)
    return Turn(f"{text}\n{order}" if where < 0.8 else f"{order}\n{text}", answer, check, thought)
