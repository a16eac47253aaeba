"""A character model in plain PyTorch at the settings of examples/configs/gpt_text_char.yaml, trained on the same text: what
`levin fit gpt_text` is compared with. Prints the validation loss at each validation and a line of JSON at the end.

usage: gpt_text.py FILE [--steps 5000] [--device cuda] [--mode eager|default|max-autotune-no-cudagraphs] [--batch 64] [--block 256]
                   [--layers 6] [--heads 6] [--width 384] [--dropout 0.2] [--every 250] [--seed 0]
"""
import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.heads, self.dropout = args.heads, args.dropout
        self.norm_1 = nn.LayerNorm(args.width, bias=False)
        self.qkv = nn.Linear(args.width, 3 * args.width, bias=False)
        self.out = nn.Linear(args.width, args.width, bias=False)
        self.norm_2 = nn.LayerNorm(args.width, bias=False)
        self.up = nn.Linear(args.width, 4 * args.width, bias=False)
        self.down = nn.Linear(4 * args.width, args.width, bias=False)

    def forward(self, x):
        b, t, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).reshape(b, t, width)), self.dropout, self.training)
        hidden = F.gelu(self.up(self.norm_2(x)), approximate="tanh")
        return x + F.dropout(self.down(hidden), self.dropout, self.training)


class Gpt(nn.Module):
    def __init__(self, args, vocab):
        super().__init__()
        self.dropout = args.dropout
        self.tokens = nn.Embedding(vocab, args.width)
        self.positions = nn.Embedding(args.block, args.width)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * args.layers) if residual else 0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def learning_rate(step, steps, peak=1e-3, least=1e-4, warmup=100, start=0.01):
    """Of LinearWarmupCosine; the same in steps that are counted from 0."""
    warmup = min(warmup, max(steps - 1, 0))
    if step < warmup:
        return peak * (start + (1 - start) * step / warmup)
    return least + (peak - least) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def windows(data, starts, block):
    rows = data[starts[:, None] + torch.arange(block + 1, device=data.device)]
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def validate(model, data, args):
    model.eval()
    starts = torch.arange(0, len(data) - args.block, args.block, device=data.device)
    total = 0.0
    for part in starts.split(args.batch):
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            total += model(*windows(data, part, args.block)).item() * len(part)
    model.train()
    return total / len(starts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    for name, usual in dict(steps=5000, batch=64, block=256, layers=6, heads=6, width=384, every=250, seed=0).items():
        parser.add_argument("--" + name, type=int, default=usual)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--mode", default="default", choices=["eager", "default", "max-autotune-no-cudagraphs"])
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")

    text = open(args.file, encoding="utf-8").read()
    ids = {c: i for i, c in enumerate(sorted(set(text)))}
    tokens = torch.tensor([ids[c] for c in text], device=args.device)
    split = len(tokens) - int(len(tokens) * 0.1)
    train, val = tokens[:split], tokens[split:]

    model = Gpt(args, len(ids)).to(args.device)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=args.device == "cuda")
    step_model = model if args.mode == "eager" else torch.compile(model, mode=None if args.mode == "default" else args.mode)
    generator = torch.Generator(device=args.device).manual_seed(args.seed)
    losses, begin, spent = [], time.time(), 0.0
    for step in range(args.steps):
        if step == 10:
            spent, begin = time.time() - begin, time.time()  # compiling apart
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps)
        starts = torch.randint(len(train) - args.block, (args.batch,), device=args.device, generator=generator)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            loss = step_model(*windows(train, starts, args.block))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            losses.append(validate(model, val, args))
            print(f"step {step + 1}: train_loss {loss.item():.4f} val_loss {losses[-1]:.4f}", flush=True)
    print(json.dumps({"case": "gpt_text", "val_loss": losses[-1], "best_val_loss": min(losses), "seconds": time.time() - begin,
                      "first_steps_seconds": spent, "mode": args.mode}))


if __name__ == "__main__":
    main()
