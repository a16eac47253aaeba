#!/usr/bin/env python3
"""Prints the headers that users may include, which are those that are installed, in CMake's list syntax.

They are PUBLIC and whatever these include; every other header is private.

usage: public_headers.py ROOT
"""
import re
import sys
from pathlib import Path

PUBLIC = [
    "levin/levin.h",
    "levin/cli/train_main.h",
    "levin/cli/train_program.h",
    "levin/config/config.h",
    "levin/distributed/launcher/launcher.h",
    "levin/models/load_weights.h",
    "levin/nn/saved_tensors.h",
]
INCLUDE = re.compile(r'^\s*#\s*include\s*["<](levin/[^">]+)[">]', re.MULTILINE)


def public_headers(root):
    headers, todo = set(), list(PUBLIC)
    while todo:
        header = todo.pop()
        if header not in headers:
            headers.add(header)
            todo += INCLUDE.findall((Path(root) / header).read_text())
    return headers


if __name__ == "__main__":
    print(";".join(sorted(public_headers(sys.argv[1]))), end="")
