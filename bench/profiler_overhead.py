#!/usr/bin/env python3
"""What recording a step costs, in Levin and in Python, on the same model; both in turns.

    bench/profiler_overhead.py build/bin/bench/profiler_overhead [--python PYTHON] [--device cuda] [--turns 3]

A row for each kind of recording: the step without, with, their ratio, and what the end of a recording takes for each
of its steps (what was recorded is put together and written as a trace). Fails when recording adds more to Levin's step
than to Python's.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

PEER = Path(__file__).resolve().parent / "peers" / "profiler_overhead.py"
KINDS = {"operators": [], "operators, shapes": ["--shapes", "1"], "operators, units": ["--units", "1"]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="build/bin/bench/profiler_overhead")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", default="20")
    parser.add_argument("--rounds", default="5")
    return parser.parse_args()


def measure(words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    args = arguments()
    failed = False
    print("| recording | | step ms | recorded ms | ratio | added ms | end ms a step |")
    print("|---|---|---|---|---|---|---|")
    for kind, flags in KINDS.items():
        common = ["--device", args.device, "--steps", args.steps, "--rounds", args.rounds, *flags]
        found = {"Levin": [], "Python": []}
        for _ in range(args.turns):
            found["Levin"].append(measure([args.program, *common]))
            found["Python"].append(measure([args.python, str(PEER), *common]))
        rows = {}
        for who, turns in found.items():
            rows[who] = row = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
            row["added"] = row["recorded_ms"] - row["plain_ms"]
            print(f"| {kind} | {who} | {row['plain_ms']:.3f} | {row['recorded_ms']:.3f} | "
                  f"{row['recorded_ms'] / row['plain_ms']:.2f} | {row['added']:.3f} | {row['end_ms']:.3f} |")
        failed |= rows["Levin"]["added"] > rows["Python"]["added"]
    print("Levin's recording costs more than Python's" if failed else "Levin's recording costs at most Python's")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
