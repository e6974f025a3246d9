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
    """Mostly with an optional city: without one it tells the time where the user is."""
    name = r.choice(["clock", "get_time", "get_time"])
    return function(name, r.choice(["The time in a city", "Tells the current time", "Gets the time"]),
                    {"city": {"type": "string", "description": r.choice(["The city", "Name of the city"])}}, ["city"] if r.random() < 0.2 else [])


# The tools of the app, with these very words.
APP_TOOLS = [
    function("get_time", "Tells the current time", {"city": {"type": "string", "description": "Name of the city"}}, []),
    function("calculate", "Calculates the value of an expression",
             {"expression": {"type": "string", "description": "What to compute, for example 2 * 3"}}, ["expression"]),
]


def name_of(tool):
    return tool["function"]["name"]


def needs_city(tool):
    return "required" in tool["function"]["parameters"]


def city(r, held):
    name = r.choice(HELD_CITIES) if held else r.choice(CITIES) if r.random() < 0.4 else tasks_talk.made_up(r)
    return name.lower() if r.random() < 0.1 else name  # it is repeated as it was written


# ---- requests --------------------------------------------------------------------------------------------------------

OPERATORS = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}


def operand(r):
    """Half of them small, a third with decimals."""
    top = r.choice([20, 100, 1000, 1000])
    places = r.choice([0, 0, 0, 0, 1, 2])
    return f"{r.randrange(2, top)}" if not places else f"{r.randrange(1, top * 10**places) / 10**places:.{places}f}"


WAYS = ["What is {e}?", "Calculate {e}.", "How much is {e}?", "{e} = ?", "And {e}?", "{e}", "Compute {e}."]


def simple(r, small):
    """Two operands: question, expression, result."""
    a, sign, b = operand(r), r.choice("+-*/*+"), operand(r)
    if small:
        a, sign, b = str(r.randrange(100)), r.choice("+-"), str(r.randrange(100))
    x, y = float(a), float(b)
    spoken = f"{a} {OPERATORS[sign]} {b}" if r.random() < 0.35 else f"{a} x {b}" if sign == "*" and r.random() < 0.15 else f"{a} {sign} {b}"
    return r.choice(WAYS).format(e=spoken), f"{a} {sign} {b}", {"+": x + y, "-": x - y, "*": x * y, "/": x / max(y, 1e-9)}[sign]


def involved(r):
    """More than two operands, percents, roots."""
    a, b, c = r.randrange(2, 100), r.randrange(2, 100), r.randrange(2, 20)
    kind = r.randrange(5)
    if kind == 0:
        return r.choice([f"What is {c} percent of {a}?", f"How much is {c} % of {a}?", f"{c} percent of {a}"]), f"{a} * {c} / 100", a * c / 100
    if kind == 1:
        return r.choice([f"What is the square root of {a}?", f"Calculate the square root of {a}."]), f"sqrt({a})", a**0.5
    text, result = {2: (f"({a} + {b}) * {c}", (a + b) * c), 3: (f"{a} + {b} + {c}", a + b + c), 4: (f"{a} * {b} - {c}", a * b - c)}[kind]
    return r.choice(WAYS).format(e=text), text, result


def expression(r, held, small=False):
    """Any: with a calculator at hand it is always asked. Numbers are written as the user writes them."""
    return draw(held, lambda: involved(r) if not small and r.random() < 0.25 else simple(r, small), lambda c: c[1])


def shown(x, places=2):
    return str(int(x)) if x == int(x) else f"{x:.{places}f}".rstrip("0").rstrip(".")


def call_to(name, **arguments):
    return [{"type": "function", "function": {"name": name, "arguments": arguments}}]


ASK_WEATHER = ["What is the weather in {c}?", "How is the weather in {c}?", "Is it raining in {c}?", "What's the weather like in {c} today?",
               "Do I need an umbrella in {c}?", "Tell me the weather in {c}.", "How warm is it in {c}?"]
ASK_TIME = ["What time is it in {c}?", "What's the time in {c}?", "How late is it in {c}?", "Tell me the time in {c}.", "Which time is it now in {c}?",
            "And what time is it in {c}?"]
# The last of each is held out.
ASK_LOCAL_TIME = ["What time is it?", "What's the time?", "What is the time?", "Tell me the time.", "What time is it now?", "time please", "How late is it?",
                  "Can you tell me the time?", "And what time is it now?", "TELL ME THE TIME", "The time, please.", "What is the time now?", "What time do we have?",
                  "Do you know what time it is?"]
ASK_DATE = ["What is the date today?", "What day is it?", "Which day is today?", "What is today's date?", "Tell me the date.", "What date is it?",
            "What day is today?"]


def phrase(r, held, asks):
    return asks[-1] if held else r.choice(asks[:-1])


def request(r, held, kind, tools, small=False):
    """A question for the tool of this kind, its call, a thought, and what it is about: (expression, result), a city, "" or "date". `small`: a sum of
    two digits, as people ask it of a model without a calculator."""
    tool = tools[kind]
    if kind == "calculator":
        ask, text, result = expression(r, held, small)
        return ask, call_to(name_of(tool), expression=text), "I should use the calculator.", (text, result)
    where = city(r, held)
    if kind == "weather":
        return r.choice(ASK_WEATHER).format(c=where), call_to(name_of(tool), city=where), f"I should ask for the weather in {where}.", where
    if not needs_city(tool) and r.random() < 0.55:
        date = r.random() < 0.25
        ask = phrase(r, held, ASK_DATE if date else ASK_LOCAL_TIME)
        return ask, call_to(name_of(tool)), "I should ask for the time.", "date" if date else ""
    return r.choice(ASK_TIME).format(c=where), call_to(name_of(tool), city=where), f"I should ask for the time in {where}.", where


KINDS = {"calculator": calculator, "weather": weather, "clock": clock}


def declared(r, needed):
    """The tool that is needed among others, in any order; and all of them by kind."""
    kinds = [needed] + [k for k in KINDS if k != needed and r.random() < 0.4]
    if needed != "weather" and r.random() < 0.4:
        kinds = ["clock", "calculator"]  # as the app has them
    r.shuffle(kinds)
    tools = {k: KINDS[k](r) for k in kinds}
    return tools, list(tools.values())


def tools(r, held):
    kind = r.choice(["calculator", "weather", "clock", "clock"])
    by_kind, listed = declared(r, kind)
    if r.random() < 0.25:  # tools are there, but the question needs none, or another one
        turn = r.choice([tasks_talk.small_talk, tasks_talk.about, tasks_talk.nonsense,
                         lambda r, held: tasks_talk.modesty(r, held, by_kind)])(r, held)
        turn.tools = listed
        turn.check = {"calls": []}  # what it says instead is scored by the other tasks
        turn.thought = "No tool is needed."
        return turn
    if kind == "clock" and needs_city(by_kind[kind]) and r.random() < 0.3:
        return Turn(phrase(r, held, ASK_LOCAL_TIME), WHICH_CITY, {"calls": [], "contains": ["which city"]}, "I need a city.", tools=listed)
    ask, calls, thought, _ = request(r, held, kind, by_kind)
    return Turn(ask, "", {"calls": [c["function"] for c in calls]}, thought, tools=listed, calls=calls)


WHICH_CITY = "In which city?"

# ---- results ---------------------------------------------------------------------------------------------------------

CONDITIONS = {"sunny": "It is sunny in {c}, {t} degrees.", "rainy": "It is rainy in {c}, {t} degrees. Take an umbrella.",
              "cloudy": "It is cloudy in {c}, {t} degrees.",
              "windy": "It is windy in {c}, {t} degrees.", "snowy": "It is snowy in {c}, {t} degrees. Dress warmly."}
ZONES = "UTC Europe/Rome Europe/London America/New_York Asia/Tokyo Africa/Cairo Europe/Berlin Australia/Sydney America/Lima Asia/Kolkata".split()
ERRORS = ["not available", "The tool failed.", "timeout", "Something went wrong.", "network error", "unknown",
          "Tools may be called in at most 5 rounds for one answer."]
SUM_ERRORS = ["division by zero", "Division by zero has no result.", "Expected an operator or the end, found '{w}'.",
              "The result is not a finite number.", "The expression is empty.", "Expected a number, found '{w}'.",
              "Expected the end, found '{w}'.",
              "Expected a number or a function, found '{w}'.", "The result is not a number.", "Expected a number, found the end."]
SORRY_TOOL = "I am sorry, the tool did not answer."
SORRY_SUM = "I am sorry, the calculator could not work that out."
NO_SUCH_TOOL = "I am sorry, I have no tool for that."


def told(r, values):
    """JSON with blanks, as Python writes it, or without, as JavaScript does."""
    return json.dumps(values, ensure_ascii=False, separators=r.choice([(",", ":"), (", ", ": ")]))


def time_of_day(r):
    hour, minute = r.randrange(24), r.randrange(60)
    form = r.random()
    if form < 0.8:
        return f"{hour:02}:{minute:02}"
    return f"{hour:02}:{minute:02}:{r.randrange(60):02}" if form < 0.9 else f"{hour % 12 or 12}:{minute:02} {'AM' if hour < 12 else 'PM'}"


def date(r):
    year, month, day, weekday = r.randrange(2020, 2040), r.randrange(12), r.randrange(1, 29), r.choice(DAYS)
    return r.choice([f"{year}-{month + 1:02}-{day:02}"] + [f"{weekday}, {day} {MONTHS[month]} {year}"] * 3 + [f"{day} {MONTHS[month]} {year}",
                     f"{weekday}, {MONTHS[month]} {day}, {year}"])


def clock_result(r, where):
    time, today = time_of_day(r), date(r)
    place = where if where != "date" else ""
    if place and r.random() < 0.15:
        return (told(r, {"error": f"No time zone is known for '{place}'. The local time is {time}."}), f"I do not know the time in {place}. Here it is {time}.",
                {"contains": [place, time]}, f"The time zone of {place} is not known.")
    values = {"city": place} if place else {"city": None} if r.random() < 0.15 else {}
    values |= {"time": time, "date": today, "timezone": r.choice(ZONES)}
    if where != "date" and r.random() < 0.3:
        values = {k: v for k, v in values.items() if k == "time" or r.random() < 0.5}
    content = time if list(values) == ["time"] and r.random() < 0.3 else told(r, values)
    if where == "date":
        return content, f"Today is {today}.", {"contains": [today]}, f"The date is {today}."
    if place:
        return content, f"It is {time} in {place}.", {"contains": [time, place]}, f"The time is {time}."
    return content, f"It is {time}.", {"contains": [f"is {time}."]}, f"The time is {time}."


def calculator_result(r, what):
    text, result = what
    if r.random() < 0.1:
        error = r.choice(SUM_ERRORS).format(w=r.choice([tasks_talk.made_up(r).lower(), "x", ")", "="]))
        return told(r, {"error": error}), SORRY_SUM, {"contains": ["sorry"]}, "The calculator has failed."
    value = shown(result, r.choice([2, 2, 4, 8, 11]))
    content = r.choice([told(r, {"result": float(value) if "." in value else int(value)}), f'{{"result": {value}}}', f'{{"result":{value}}}', value,
                        f'{{"value": {value}}}'])
    if "e" in content.replace("result", "").replace("value", ""):  # a float that Python writes with an exponent
        content = value
    return content, f"{text} = {value}.", {"contains": [f"= {value}."]}, f"The result is {value}."


def weather_result(r, where):
    condition, degrees = r.choice(list(CONDITIONS)), r.randrange(-9, 39)
    values = {"temperature": degrees, "condition": condition} if r.random() < 0.5 else {"condition": condition, "temperature": degrees}
    content = told(r, values) if r.random() < 0.67 else f"{condition}, {degrees} degrees"
    return (content, CONDITIONS[condition].format(c=where, t=degrees), {"contains": [condition, where, f"{degrees} degrees"]},
            f"It is {condition} with {degrees} degrees.")


RESULTS = {"calculator": calculator_result, "weather": weather_result, "clock": clock_result}


def outcome(r, kind, what):
    """What a tool says about it: content, the answer from that, its check, a thought."""
    if r.random() < 0.05:
        return told(r, {"error": r.choice(ERRORS)}), SORRY_TOOL, {"contains": ["sorry"]}, "The tool has failed."
    return RESULTS[kind](r, what)


def unknown_tool(r, listed):
    """A call to a tool that is not there, and what the program says to that."""
    names = [name_of(t) for t in listed]
    wrong = r.choice([n for n in ("current_time", "weather", "search", "calculate", "time", "get_weather", "lookup", "get_date") if n not in names])
    given = r.choice([{}, {"city": r.choice(CITIES)}, {"query": r.choice(CITIES)}])
    error = r.choice(["There is no tool named '{n}'. The tools are: {t}.", "There is no tool named '{n}'.", "Unknown tool '{n}'."])
    return call_to(wrong, **given), wrong, told(r, {"error": error.format(n=wrong, t=", ".join(names))})


def results(r, held):
    kind = r.choice(["calculator", "weather", "clock", "clock"])
    by_kind, listed = declared(r, kind)
    ask, calls, call_thought, what = request(r, held, kind, by_kind)
    name = name_of(by_kind[kind])
    content, answer, check, thought = outcome(r, kind, what)
    if r.random() < 0.06:
        calls, name, content = unknown_tool(r, listed)
        answer, check, thought = NO_SUCH_TOOL, {"contains": ["no tool"]}, "There is no such tool."
    history = [{"role": "assistant", "content": "", "tool_calls": calls}, {"role": "tool", "tool_name": name, "content": content}]
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
