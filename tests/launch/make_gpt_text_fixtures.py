"""Writes what gpt_text_test.cpp compares with: a tiny GPT-2 of transformers, the losses of 30 steps of its training in PyTorch on the
first windows of a text, and a file as Debian's package bible-kjv-text has it. Run: python tests/launch/make_gpt_text_fixtures.py"""
import json
import math
import pathlib
import subprocess

import torch
from transformers import GPT2Config, GPT2LMHeadModel

HERE = pathlib.Path(__file__).parent / "fixtures" / "gpt_text"
BLOCK, BATCH, BATCHES, STEPS, WARMUP, LR, LEAST, START = 16, 4, 5, 30, 6, 1e-2, 1e-3, 0.01

TEXT = "".join(f"{a} {b} {c}s {d} the {e}.\n" for a in ("One", "No") for b in ("grey", "small", "old") for c in ("cat", "owl", "fox")
               for d in ("sees", "likes") for e in ("moon", "river"))


def learning_rate(step):
    if step < WARMUP:
        return LR * (START + (1 - START) * step / WARMUP)
    return LEAST + (LR - LEAST) * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2


def compressed(data, clear_at):
    """LZW as the program `compress` writes it: codes of 9 bits and more, eight of a width together; one clearing of the table."""
    out, group, width, table, word = bytearray(b"\x1f\x9d\x90"), [], 9, {bytes([i]): i for i in range(256)}, b""
    free = 257

    def flush(whole):
        nonlocal group
        bits = sum(code << (i * width) for i, code in enumerate(group))
        out.extend(bits.to_bytes(width if whole else (len(group) * width + 7) // 8, "little"))
        group = []

    def put(code):
        group.append(code)
        if len(group) == 8:
            flush(True)

    for at, byte in enumerate(data):
        longer = word + bytes([byte])
        if longer in table:
            word = longer
            continue
        put(table[word])
        if free < 1 << 16:
            table[longer], free = free, free + 1
            if free > 1 << width:  # the reader's table is one word behind
                if group:
                    flush(True)
                width += 1
        word = bytes([byte])
        if at >= clear_at and clear_at:
            put(256)
            if group:
                flush(True)
            width, free, table, clear_at = 9, 257, {bytes([i]): i for i in range(256)}, 0
    put(table[word])
    if group:
        flush(False)
    assert subprocess.run(["gzip", "-dc"], input=bytes(out), capture_output=True, check=True).stdout == data
    return bytes(out)


def write_bible():
    lines = [f"{book}{1 + i // 20}:{1 + i % 20} {line}" for book in ("Ge", "1Jo") for i, line in enumerate(TEXT.splitlines()[:40])]
    data = "A title.\n" + "".join(line + "\n" for line in lines)
    head = b"EC02Compressed Data File".ljust(92, b"\0")
    (HERE / "bible.data").write_bytes(head + compressed(data.encode(), 2000))


def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    HERE.mkdir(parents=True, exist_ok=True)
    ids = {c: i for i, c in enumerate(sorted(set(TEXT)))}
    (HERE / "text.txt").write_text(TEXT)
    write_bible()
    config = GPT2Config(vocab_size=len(ids), n_positions=BLOCK, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(HERE / "model")
    (HERE / "model" / "model.safetensors").chmod(0o644)
    tokens = torch.tensor([ids[c] for c in TEXT])
    rows = [tokens[i * BLOCK : (i + 1) * BLOCK + 1] for i in range(BATCH * BATCHES)]
    batches = [torch.stack(rows[i * BATCH : (i + 1) * BATCH]) for i in range(BATCHES)]
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=LR,
                                  betas=(0.9, 0.99))
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        batch = batches[step % BATCHES]
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    (HERE / "losses.json").write_text(json.dumps(losses) + "\n")
    print(losses[0], losses[-1], len(TEXT), len(ids))


if __name__ == "__main__":
    main()
