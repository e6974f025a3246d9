"""The text part of the model in the box as a plain file of llama.cpp's, for engines that know no other:

    /usr/bin/python3 bench/browser/box_text.py models/box.gguf build/bench/box-text.gguf
"""

import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../tools/box"))
sys.dont_write_bytecode = True

import export
import sizes
from tokenizer import Tokenizer

if len(sys.argv) != 3:
    sys.exit(__doc__)
box, text = sys.argv[1:]
if not os.path.exists(box):
    sys.exit(f"box_text: there is no '{box}'")
with tempfile.TemporaryDirectory() as folder:
    export.write_pair(text, os.path.join(folder, "towers.gguf"), export.import_single(box, sizes.BOX), sizes.BOX, Tokenizer.load(), "Q8_0")
