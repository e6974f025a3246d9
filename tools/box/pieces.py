"""Arrays by name, stored in as many .npz files as it takes to keep each below 15 MB: small enough to carry."""

import os

import numpy as np

MOST_BYTES = 15_000_000


def save(folder, name, arrays):
    os.makedirs(folder, exist_ok=True)
    pieces, size = [{}], 0
    for n, a in arrays.items():
        if size + a.nbytes > MOST_BYTES and pieces[-1]:
            pieces.append({})
            size = 0
        pieces[-1][n] = a
        size += a.nbytes
    for i, piece in enumerate(pieces):
        np.savez(os.path.join(folder, f"{name}-{i}.npz"), **piece)


def load(folder, name):
    arrays, i = {}, 0
    while os.path.exists(path := os.path.join(folder, f"{name}-{i}.npz")):
        with np.load(path) as f:
            arrays |= {n: f[n] for n in f.files}
        i += 1
    if not arrays:
        raise SystemExit(f"there is no {name}-0.npz in {folder}")
    return arrays
