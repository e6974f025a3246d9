"""Writing and reading GGUF files: the few types that the recipe needs."""

import struct

import numpy as np

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
PACK = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
NUMPY = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}

TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q8_0": (8, 32, 34), "I32": (26, 1, 4)}  # name: number, values and bytes of a block
NAMES = {number: name for name, (number, _, _) in TYPES.items()}
ALIGN = 32

# ---- blocks ----------------------------------------------------------------------------------------------------------


def quantise_q8_0(x):
    """Per 32 values: a half scale d = max|x| / 127 and round(x / d)."""
    blocks = np.asarray(x, np.float32).reshape(-1, 32)
    scale = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    q = np.trunc(blocks * inverse + np.copysign(np.float32(0.5), blocks)).astype(np.int8)  # half away from zero
    out = np.empty((len(blocks), 34), np.uint8)
    out[:, :2] = scale.astype("<f2").view(np.uint8)
    out[:, 2:] = q.view(np.uint8)
    return out.reshape(-1)


def dequantise_q8_0(data):
    blocks = np.ascontiguousarray(data).reshape(-1, 34)
    scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    return (np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32) * scale).reshape(-1)


def encode(array, kind):
    if kind == "Q8_0":
        return quantise_q8_0(array).tobytes()
    return np.ascontiguousarray(array).astype({"F32": "<f4", "F16": "<f2", "I32": "<i4"}[kind]).tobytes()


def decode(data, kind):
    if kind == "Q8_0":
        return dequantise_q8_0(data)
    values = np.ascontiguousarray(data).view({"F32": "<f4", "F16": "<f2", "I32": "<i4"}[kind])
    return values.astype(np.float32) if kind == "F16" else values.copy()


# ---- writing ---------------------------------------------------------------------------------------------------------


def string(text):
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def metadata_value(kind, value):
    """`kind` is a number, or [number] for an array."""
    if isinstance(kind, list):
        item = kind[0]
        body = b"".join(map(string, value)) if item == STRING else b"".join(struct.pack(PACK[item], v) for v in value)
        return struct.pack("<IIQ", ARRAY, item, len(value)) + body
    return struct.pack("<I", kind) + (string(value) if kind == STRING else struct.pack(PACK[kind], value))


def write(path, metadata, tensors):
    """metadata: [(key, kind, value)]; tensors: [(name, array in PyTorch's order of sides, type name)]. Returns the file's size."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, kind, value in metadata:
        head += [string(key), metadata_value(kind, value)]
    bodies, offset = [], 0
    for name, array, kind in tensors:
        number, block, size = TYPES[kind]
        sides = [int(n) for n in reversed(np.shape(array))] or [1]
        if sides[0] % block:
            raise ValueError(f"{name}: rows of {sides[0]} values do not fall into blocks of {block} ({kind})")
        data = encode(array, kind)
        head += [string(name), struct.pack("<I", len(sides)), struct.pack(f"<{len(sides)}Q", *sides), struct.pack("<IQ", number, offset)]
        data += bytes(-len(data) % ALIGN)
        bodies.append(data)
        offset += len(data)
    head = b"".join(head)
    head += bytes(-len(head) % ALIGN)
    with open(path, "wb") as f:
        f.write(head)
        for body in bodies:
            f.write(body)
    return len(head) + offset


# ---- reading ---------------------------------------------------------------------------------------------------------


class File:
    """metadata: key → value; `tensor(name)`: f32 (or i32), in PyTorch's order of sides."""

    def __init__(self, path):
        self.bytes = np.fromfile(path, np.uint8)
        self.at = 4
        if self.bytes[:4].tobytes() != b"GGUF" or self.number(4) != 3:
            raise ValueError(f"{path} is not a GGUF file of version 3")
        tensors, values = self.number(10), self.number(10)
        self.metadata, self.infos = {}, {}
        for _ in range(values):
            key = self.string()
            self.metadata[key] = self.value(self.number(4))
        for _ in range(tensors):
            name = self.string()
            sides = [self.number(10) for _ in range(self.number(4))]
            self.infos[name] = (sides, NAMES[self.number(4)], self.number(10))
        self.start = -(-self.at // ALIGN) * ALIGN

    def number(self, kind):
        self.at += SIZES[kind]
        return self.bytes[self.at - SIZES[kind]:self.at].view(NUMPY[kind])[0].item()

    def string(self):
        n = self.number(10)
        self.at += n
        return self.bytes[self.at - n:self.at].tobytes().decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, n = self.number(4), self.number(10)
            return [self.value(item) for _ in range(n)]
        return self.number(kind)

    def __contains__(self, name):
        return name in self.infos

    def tensor(self, name):
        sides, kind, offset = self.infos[name]
        _, block, size = TYPES[kind]
        bytes_ = int(np.prod(sides)) // block * size
        data = self.bytes[self.start + offset:self.start + offset + bytes_]
        return decode(data, kind).reshape(sides[::-1])
