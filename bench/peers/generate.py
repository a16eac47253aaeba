"""The peer of generate.cpp on a CPU: greedy tokens of one row by transformers, from the same folder, in the same dtype.

    python bench/peers/generate.py FOLDER [--dtype float32] [--threads 2] [--prompt 64] [--tokens 64] [--rounds 5] [--levin PROGRAM]

With --levin build/bin/bench/generate both take turns, round by round, and the last line has the ratio: how many times faster Levin is.
"""
import argparse
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))


def measure(options):
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype=getattr(torch, options.dtype)).eval()
    ids = torch.full((1, options.prompt), 17)
    kinds = dict(do_sample=False, pad_token_id=0, eos_token_id=None)

    def seconds(tokens):
        start = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, **kinds)
        return time.perf_counter() - start

    def round_ms():
        # The prompt and the first token are not counted.
        first = seconds(1)
        return (seconds(options.tokens + 1) - first) / options.tokens * 1e3

    rounds = []
    with torch.inference_mode():
        round_ms()
        if options.wait:
            print(json.dumps({"ready": True}), flush=True)
        for _ in sys.stdin if options.wait else range(options.rounds):
            rounds.append(round_ms())
            if options.wait:
                print(json.dumps({"round": rounds[-1]}), flush=True)
    ms = min(rounds)
    print(json.dumps({"case": "generate_cpu", "ms": ms, "tokens_per_s": 1e3 / ms, "threads": options.threads}))


def in_turns(options):
    import turns

    sizes = ["--dtype", options.dtype, "--threads", options.threads, "--prompt", options.prompt, "--tokens", options.tokens]
    sizes = [*map(str, sizes), "--wait"]
    levin = [options.levin, "--folder", options.folder, "--device", "cpu", *sizes]
    peer = [sys.executable, __file__, options.folder, *sizes]
    results, ok = turns.take_turns({"generate_cpu": ({"levin": levin}, {"transformers": peer})}, options.rounds,
                                   lambda line: print(line, file=sys.stderr))
    sides = results["generate_cpu"]
    if not ok or not sides["levin"] or not sides["peer"]:
        return 1
    ours, theirs = sides["levin"]["levin"], sides["peer"]["transformers"]
    best = [min(figure["rounds"]) for figure in (ours, theirs)]
    print(json.dumps({"case": f"{options.folder} {options.dtype}", "levin_tokens_per_s": round(1e3 / best[0], 2),
                      "transformers_tokens_per_s": round(1e3 / best[1], 2), "ratio": round(best[1] / best[0], 3),
                      "triad_gb_per_s": ours["triad_gb_per_s"], "share_of_triad": ours["share"], "mb_per_token": ours["mb_per_token"]}))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="float32")
    for name, default in (("threads", 2), ("prompt", 64), ("tokens", 64), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--levin")
    parser.add_argument("--wait", action="store_true")
    given = parser.parse_args()
    sys.exit(in_turns(given) if given.levin else measure(given))
