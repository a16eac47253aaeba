#!/usr/bin/env python3
"""Tokens per second of `levin serve` with many clients at once, beside those of one offline batch (`levin generate --paged`) of the same prompts.

usage: serve_clients.py LEVIN MODEL [--clients 64] [--tokens 128] [--prompt-tokens 64] [--rounds 3] [-- FLAGS OF BOTH]
Prompts are random tokens, so that any folder will do. No token ends a text: every one has --tokens of them. The best round of each counts.
"""
import argparse
import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request


def offline(levin, model, prompts, tokens, flags):
    """The tokens/s that `levin generate` prints, which leaves out loading."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/in.jsonl", "w") as file:
            file.writelines(json.dumps({"ids": ids}) + "\n" for ids in prompts)
        done = subprocess.run([levin, "generate", model, f"{folder}/in.jsonl", f"{folder}/out.jsonl", str(tokens), "1", "--json", "--ignore-eos",
                               "--paged", "--batch", str(len(prompts)), *flags], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return float(re.search(r"([0-9.]+) tokens/s", done.stderr)[1])


def one_client(address, ids, tokens, seed, counts):
    """The stream of a client; appends the number of its tokens."""
    connection = http.client.HTTPConnection(address, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": ids, "max_tokens": tokens, "ignore_eos": True, "seed": seed, "stream": True,
                                                              "stream_options": {"include_usage": True}}))
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(answer.read().decode())
    rest = b""
    while part := answer.read1(1 << 16):
        rest = (rest + part)[-4096:]
    counts.append(json.loads(rest.split(b"data: ")[-2])["usage"]["completion_tokens"])


def online(address, prompts, tokens):
    """Tokens per second, and the mean seconds to a first token, which the server counts."""
    counts, before = [], first_tokens(address)
    clients = [threading.Thread(target=one_client, args=(address, ids, tokens, i, counts)) for i, ids in enumerate(prompts)]
    start = time.perf_counter()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    took = time.perf_counter() - start
    after = first_tokens(address)
    return sum(counts) / took, (after[0] - before[0]) / (after[1] - before[1])


def first_tokens(address):
    text = urllib.request.urlopen(f"http://{address}/metrics").read().decode()
    return [float(re.search(rf"^levin_time_to_first_token_seconds_{name} (\S+)", text, re.MULTILINE)[1]) for name in ("sum", "count")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("levin")
    parser.add_argument("model")
    for name, value in (("clients", 64), ("tokens", 128), ("prompt-tokens", 64), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    words = sys.argv[1:]
    flags = words[words.index("--") + 1:] if "--" in words else []
    options = parser.parse_args(words[:words.index("--")] if "--" in words else words)
    vocab = json.load(open(os.path.join(options.model, "config.json")))["vocab_size"]
    draw = random.Random(0)
    make = lambda: [[draw.randrange(vocab) for _ in range(options.prompt_tokens)] for _ in range(options.clients)]
    batch = max(offline(options.levin, options.model, make(), options.tokens, flags) for _ in range(options.rounds))
    server = subprocess.Popen([options.levin, "serve", options.model, "--port", "0", "--max-rows", str(options.clients), "--max-connections",
                               str(options.clients + 8), *flags], stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip().removeprefix("http://")
        online(address, make(), 4)  # graphs, pools of threads
        rate, first = max(online(address, make(), options.tokens) for _ in range(options.rounds))
        stats = json.load(urllib.request.urlopen(f"http://{address}/v1/stats"))
    finally:
        server.terminate()
        server.wait()
    print(f"{options.clients} clients, prompts of {options.prompt_tokens} tokens, {options.tokens} new ones")
    print(f"offline batch  {batch:10.1f} tokens/s")
    print(f"server         {rate:10.1f} tokens/s   {rate / batch:.2f} of it; first token after {1000 * first:.0f} ms (mean)")
    print(f"memory         {stats['memory_peak_bytes'] / 1e9:.2f} GB, cache {stats['cache_bytes'] / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
