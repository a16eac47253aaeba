#!/usr/bin/env python3
"""Trains the character model of examples/configs/gpt_text_char.yaml with Levin and with plain PyTorch (bench/peers/gpt_text.py) on the
same text, and prints both validation losses and times. A GPU takes a minute or two for each.

usage: bench/gpt_text.py FILE [--levin build/bin/levin] [--python python3] [--steps 5000] [--mode default] [--only levin|peer] [FLAG...]
  FILE: a text, such as the first megabyte of a book. More flags go to `levin fit`. That of Debian's package bible-kjv-text:
    tail -c +369 /usr/lib/bible.data | gzip -dc | tail -n +2 | sed 's/^[^ ]* //' | head -c 1100000 >build/kjv.txt
"""
import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def timed(command):
    begin = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout[-2000:])
        sys.exit(f"gpt_text: {command[0]} failed")
    return done.stdout, time.time() - begin


def run_levin(args, flags):
    with tempfile.TemporaryDirectory() as folder:
        out, seconds = timed([args.levin, "fit", "--config", str(ROOT / "examples/configs/gpt_text_char.yaml"), "--data.file", args.file,
                              "--data.cache", folder, "--trainer.max_steps", str(args.steps), "--trainer.default_root_dir", folder,
                              "--trainer.enable_progress_bar", "false", *flags])
        rows = list(csv.DictReader(next(Path(folder).rglob("metrics.csv")).open(newline="")))
    losses = [float(row["val_loss"]) for row in rows if row.get("val_loss")]
    sample = out.rstrip().rsplit("bits per character", 1)[-1]
    return {"val_loss": losses[-1], "best_val_loss": min(losses), "wall_seconds": seconds, "sample": sample[:400]}


def run_peer(args):
    out, seconds = timed([args.python, str(ROOT / "bench/peers/gpt_text.py"), args.file, "--steps", str(args.steps), "--mode", args.mode])
    return {**json.loads(out.splitlines()[-1]), "wall_seconds": seconds}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--levin", default=str(ROOT / "build/bin/levin"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--mode", default="default")
    parser.add_argument("--only", choices=["levin", "peer"])
    args, flags = parser.parse_known_args()
    results = {}
    if args.only != "peer":
        results["levin"] = run_levin(args, flags)
        print(results["levin"].pop("sample"), flush=True)
    if args.only != "levin":
        results["pytorch"] = run_peer(args)
    print(f"{'':<10}{'val_loss':>10}{'best':>10}{'seconds':>10}   {args.steps} steps")
    for name, result in results.items():
        print(f"{name:<10}{result['val_loss']:>10.4f}{result['best_val_loss']:>10.4f}{result['wall_seconds']:>10.1f}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
