"""The peer of tokenizer.cpp: the Python package `tokenizers` over the same files. Run after it (it writes the files).

A number of threads is fixed before the package is loaded, so each case has a process of its own.
"""
import json
import os
import subprocess
import sys
import time

FOLDER = next((sys.argv[i + 1] for i, word in enumerate(sys.argv) if word == "--folder"), "build/bench_text")


def measure(case):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{FOLDER}/tokenizer.json")
    raw = open(f"{FOLDER}/text.txt", "rb").read()
    text, lines, at = raw.decode(), [], 0
    while at < len(raw):
        end = raw.find(b"\n", min(len(raw), at + 4000))
        end = len(raw) - 1 if end < 0 else end
        lines.append(raw[at:end + 1].decode())
        at = end + 1
    ids = tokenizer.encode(text).ids
    work = {"encode, one text": lambda: tokenizer.encode(text), "decode": lambda: tokenizer.decode(ids)}.get(case, lambda: tokenizer.encode_batch(lines))
    best = 0
    for _ in range(5):
        start = time.perf_counter()
        work()
        best = max(best, len(raw) / 1e6 / (time.perf_counter() - start))
    print(json.dumps({"case": case, "value": round(best, 2), "unit": "MB/s", "better": "higher"}), flush=True)


if len(sys.argv) > 1 and sys.argv[1] == "--case":
    measure(sys.argv[2])
else:
    for name, threads in (("encode, one text", 1), ("encode batch, one core", 1), ("encode batch, two cores", 2), ("decode", 1)):
        environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
        subprocess.run([sys.executable, __file__, "--case", name, "--folder", FOLDER], env=environment, check=True)
