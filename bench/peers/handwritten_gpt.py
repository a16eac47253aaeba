"""The peer of handwritten_gpt.cpp: the same model and step in PyTorch, eager. usage: handwritten_gpt.py [--tiny] [--batch N]"""
import argparse, json, math, time
import torch
from torch import nn

asked = argparse.ArgumentParser()
asked.add_argument("--tiny", action="store_true")
asked.add_argument("--batch", type=int)
asked = asked.parse_args()
gpu = torch.cuda.is_available()
vocab, context, width, heads, layers = (256, 32, 64, 2, 2) if asked.tiny else (50304, 1024, 768, 12, 12)


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("later", torch.ones(context, context, dtype=torch.bool).triu(1))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // heads)
        scores = scores.masked_fill(self.later[:length, :length], -math.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.attention, self.norm_2 = nn.LayerNorm(width), SelfAttention(), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        h = self.up(self.norm_2(x))
        inner = math.sqrt(2 / math.pi) * (h + 0.044715 * h.pow(3))
        return x + self.down(0.5 * h * (1 + inner.tanh()))


class HandwrittenGpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids, following):
        x = self.tokens(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.view(-1, vocab), following.view(-1))


def main():
    if not gpu and not asked.tiny:
        print(json.dumps({"skip": "no GPU; --tiny runs a small model on the CPU"}))
        return
    torch.manual_seed(0)
    device = "cuda" if gpu else "cpu"
    model = HandwrittenGpt().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    text = torch.randint(vocab, (asked.batch or (2 if asked.tiny else 16), context + 1), device=device)
    ids, following = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=gpu):
            loss = model(ids, following)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(5):
        first = step()
    first, times = first.item(), []
    for _ in range(2 if asked.tiny else 5):
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < (0.1 if asked.tiny else 2):
            for _ in range(5):
                loss = step()
                steps += 1
            loss.item()
        times.append(1e3 * (time.perf_counter() - start) / steps)
    assert loss.item() < first, (first, loss.item())
    name = "handwritten_gpt" + (", tiny" if asked.tiny else "")
    print(json.dumps({"case": name, "value": round(sorted(times)[len(times) // 2], 3), "unit": "ms"}))


main()
