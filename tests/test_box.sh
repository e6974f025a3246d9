#!/usr/bin/env bash
# The recipe of the model in the box (tools/box), with Debian's Python. The program is the first argument, or build/gemmule.
cd "$(dirname "$0")/.." && exec /usr/bin/python3 -W error::SyntaxWarning tests/test_box.py "$(realpath "${1:-build/gemmule}")"
