"""Split a hashed requirements file: everything but PyTorch and its CUDA packages, and PyTorch's two pins.

python requirements-without-torch.py requirements.lock rest.lock torch.txt
"""

import re
import sys

lock, rest, torch = sys.argv[1:4]
with open(lock, encoding="utf-8") as file:
    blocks = re.split(r"\n(?=[A-Za-z0-9])", file.read().rstrip() + "\n")

CUDA = re.compile(r"(nvidia|cuda|triton)[-_a-z0-9]*(\[[^]]*\])?==")
with open(rest, "w", encoding="utf-8") as out, open(torch, "w", encoding="utf-8") as pins:
    for block in blocks:
        if re.match(r"(torch|torchvision)==", block):
            pins.write(block.split(" ")[0] + "\n")
        elif not CUDA.match(block):
            out.write(block.rstrip() + "\n")
