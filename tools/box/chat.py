"""Gemma 4's chat format, small variant, written down a second time: the test compares it with gemmule's own renderer.

A sample is {"messages": […], "tools": […], "think": bool, "answer": message}. Messages have OpenAI's shape; a picture or a sound in a
content list is {"type": "image"} or {"type": "audio"}. `prompt` is what the model is given, `answer` what it shall write.
"""

QUOTE = '<|"|>'
THOUGHT = "<|channel>thought\n"
MEDIA = {"image": "<|image><|image|><image|>", "audio": "<|audio><|audio|><audio|>"}  # the soft token stands for as many as it takes


def quoted(text):
    return QUOTE + text + QUOTE


def value(v):
    if v is None:
        return "null"
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, str):
        return quoted(v)
    if isinstance(v, dict):
        return "{" + ",".join(f"{k}:{value(v[k])}" for k in sorted(v)) + "}"
    if isinstance(v, (list, tuple)):
        return "[" + ",".join(map(value, v)) + "]"
    return str(int(v)) if v == int(v) else repr(v)


def properties(schema):
    out = []
    for key in sorted(schema):
        p, parts = schema[key], []
        kind = p.get("type", "").upper()
        if p.get("description"):
            parts.append("description:" + quoted(p["description"]))
        if kind == "STRING" and p.get("enum"):
            parts.append("enum:" + value(p["enum"]))
        if kind == "ARRAY" and p.get("items"):
            parts.append("items:{" + ",".join(f"type:{quoted(v.upper())}" if k == "type" else f"{k}:{value(v)}"
                                              for k, v in sorted(p["items"].items())) + "}")
        if kind == "OBJECT":
            parts.append("properties:{" + properties(p.get("properties", {})) + "}")
            if p.get("required"):
                parts.append("required:" + value(p["required"]))
        parts.append("type:" + quoted(kind))
        out.append(key + ":{" + ",".join(parts) + "}")
    return ",".join(out)


def declaration(tool):
    f = tool["function"]
    out = f"declaration:{f['name']}{{description:{quoted(f.get('description', ''))}"
    schema = f.get("parameters")
    if schema:
        parts = []
        if schema.get("properties"):
            parts.append("properties:{" + properties(schema["properties"]) + "}")
        if schema.get("required"):
            parts.append("required:" + value(schema["required"]))
        if schema.get("type"):
            parts.append("type:" + quoted(schema["type"].upper()))
        out += ",parameters:{" + ",".join(parts) + "}"
    return out + "}"


def call(c):
    f = c["function"]
    arguments = ",".join(f"{k}:{value(f['arguments'][k])}" for k in sorted(f["arguments"]))
    return f"<|tool_call>call:{f['name']}{{{arguments}}}<tool_call|>"


def strip_thinking(text):
    while THOUGHT[:10] in text:
        before, _, rest = text.partition(THOUGHT[:10])
        text = before + rest.partition("<channel|>")[2]
    return text.strip()


def body(message):
    content = message.get("content") or ""
    if isinstance(content, list):
        return "".join(MEDIA[p["type"]] if p["type"] in MEDIA else p["text"].strip() for p in content)
    return strip_thinking(content) if message["role"] == "assistant" else content.strip()


def prompt(sample):
    """The text up to where the model goes on writing, with <bos>."""
    messages, tools, think = list(sample["messages"]), sample.get("tools") or [], sample.get("think", False)
    out = "<bos>"
    system = messages.pop(0) if messages and messages[0]["role"] in ("system", "developer") else None
    if system or tools or think:
        out += "<|turn>system\n" + ("<|think|>\n" if think else "") + (body(system) if system else "")
        out += "".join("<|tool>" + declaration(t) + "<tool|>" for t in tools) + "<turn|>\n"
    last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    before = last = None
    for i, m in enumerate(messages):
        if m["role"] == "tool":
            continue
        last, responded, calls = None, False, m.get("tool_calls") or []
        model = m["role"] == "assistant"
        if not (model and before == "assistant"):
            out += "<|turn>" + ("model" if model else m["role"]) + "\n"
        if model and m.get("thinking") and i > last_user:
            out += THOUGHT + m["thinking"] + "\n<channel|>"
        for c in calls:
            out += call(c)
            last = "call"
        following = i + 1
        while calls and following < len(messages) and messages[following]["role"] == "tool":
            t = messages[following]
            out += f"<|tool_response>response:{t.get('tool_name') or 'unknown'}{{value:{value(t['content'])}}}<tool_response|>"
            responded, last, following = True, "response", following + 1
        text = body(m)
        out += text
        next_role = next((n["role"] for n in messages[i + 1:] if n["role"] != "tool"), None)
        if last == "call" and not responded:
            out += "<|tool_response>"
        elif model and next_role == "assistant" and (not calls or responded):
            pass
        elif not (responded and not text.strip() and next_role is None):
            out += "<turn|>\n"
        before = m["role"]
    if last not in ("call", "response"):
        out += "<|turn>model\n"
    elif last == "response" and think:
        out += THOUGHT
    return out


def answer(sample):
    """What the model writes: a thought, then calls or content, then the token that ends it."""
    m, out = sample["answer"], ""
    if m.get("thinking"):
        out = ("" if prompt(sample).endswith(THOUGHT) else THOUGHT) + m["thinking"] + "\n<channel|>"
    if m.get("tool_calls"):
        return out + "".join(map(call, m["tool_calls"])) + "<|tool_response>"
    return out + m["content"] + "<turn|>"


def render(sample):
    return prompt(sample) + answer(sample)
