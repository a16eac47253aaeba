"""The peer of speed.cpp: the same training steps in PyTorch and Lightning Fabric, at their best settings.

usage: speed.py --case NAME [--mode MODE] [--rounds 3] [--seconds 1.5] [--turns]
       speed.py --list

One case and one mode of torch.compile a process: eager, default, max-autotune-no-cudagraphs, reduce-overhead. Optimizers are fused,
convolutions have channels last, float32 products may use TF32. Prints the line of JSON that speed.cpp prints. --turns: every round
waits for a line on stdin; the end of stdin ends the rounds.
"""
import argparse
import json
import logging
import statistics
import sys
import time
import warnings

MODES = ["eager", "default", "max-autotune-no-cudagraphs", "reduce-overhead"]
WARM_UP = 6


def image_case(precision, batch, side, model, optimizer, channels_last=False, cuda=True):
    """model: (torchvision.models) -> module."""
    def make(torch, device):
        import torchvision.models as zoo
        x = torch.randn(batch, 3, side, side, device=device)
        if channels_last:
            x = x.to(memory_format=torch.channels_last)
        data = x, torch.randint(0, 10, (batch,), device=device)
        return lambda: model(zoo), data, lambda net, x, y: torch.nn.functional.cross_entropy(net(x), y)
    return dict(precision=precision, items=batch, unit="images", make=make, optimizer=optimizer, channels_last=channels_last, cuda=cuda)


def vit_l_16(zoo):
    return zoo.vit_l_16(weights=None, num_classes=10)


def gpt2(torch, device):
    """GPT-2 of 124M parameters as a plain module, its loss within, so that torch.compile sees both."""
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, dim, heads):
            super().__init__()
            self.heads = heads
            self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = (part.view(b, t, self.heads, d // self.heads).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(d, 2))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
            return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self, vocabulary=50257, positions=1024, dim=768, heads=12, layers=12):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, dim), nn.Embedding(positions, dim)
            self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
            self.norm = nn.LayerNorm(dim)
            self.head = nn.Linear(dim, vocabulary, bias=False)
            for module in self.modules():
                if isinstance(module, (nn.Linear, nn.Embedding)):
                    nn.init.normal_(module.weight, std=0.02)
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)
            self.head.weight = self.tokens.weight

        def forward(self, ids, targets):
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten(), ignore_index=-100)

    ids = torch.randint(0, 50257, (16, 1024), device=device)
    targets = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -100)], 1)
    return Model, (ids, targets), lambda net, ids, targets: net(ids, targets)


def distilbert(torch, device):
    """DistilBERT of transformers; without that library, torch's own encoder layers of the same sizes."""
    ids = torch.randint(0, 30522, (12, 512), device=device)
    labels = torch.randint(0, 2, (12,), device=device)
    try:
        from transformers import DistilBertConfig, DistilBertForSequenceClassification
    except ImportError:
        nn, F = torch.nn, torch.nn.functional

        class Model(nn.Module):
            def __init__(self, dim=768):
                super().__init__()
                self.tokens, self.positions, self.norm = nn.Embedding(30522, dim), nn.Embedding(512, dim), nn.LayerNorm(dim, eps=1e-12)
                layer = nn.TransformerEncoderLayer(dim, 12, 3072, dropout=0.1, activation="gelu", layer_norm_eps=1e-12, batch_first=True)
                self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
                self.drop = nn.Dropout(0.1)
                self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(0.2), nn.Linear(dim, 2))

            def forward(self, ids):
                x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
                return self.head(self.encoder(self.drop(self.norm(x)))[:, 0])

        return Model, (ids, labels), lambda net, ids, labels: F.cross_entropy(net(ids), labels)
    return (lambda: DistilBertForSequenceClassification(DistilBertConfig(num_labels=2)), (ids, labels),
            lambda net, ids, labels: net(input_ids=ids, labels=labels).loss)


def big_bird(torch, device):
    from transformers import BigBirdConfig, BigBirdForSequenceClassification
    ids = torch.randint(5, 50358, (4, 4096), device=device)
    labels = torch.randint(0, 2, (4,), device=device)
    return (lambda: BigBirdForSequenceClassification(BigBirdConfig(num_labels=2)), (ids, labels),
            lambda net, ids, labels: net(input_ids=ids, labels=labels).loss)


def distilbert_classify(torch, device):
    """The same on padded rows: each is 16 tokens shorter than the one before it."""
    make, (ids, labels), _ = distilbert(torch, device)
    mask = (torch.arange(512, device=device) < 512 - 16 * torch.arange(12, device=device).unsqueeze(1)).long()
    return make, (ids, mask, labels), lambda net, ids, mask, labels: net(input_ids=ids, attention_mask=mask, labels=labels).loss


def adam(torch, parameters):
    return torch.optim.Adam(parameters, lr=5e-5, fused=True)


def adamw(torch, parameters):
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


def sgd(torch, parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True)


# The names are those of speed.cpp.
CASES = {
    "vit_l_16_bs64_mixed": image_case("bf16-mixed", 64, 224, vit_l_16, adam),
    "vit_l_16_bs64": image_case("bf16-true", 64, 224, vit_l_16, adam),
    "vit_l_16_bs16": image_case("bf16-true", 16, 224, vit_l_16, adam),
    "vit_l_16_bs4": image_case("bf16-true", 4, 224, vit_l_16, adam),
    "vit_b_16_bs32": image_case("bf16-mixed", 32, 224, lambda zoo: zoo.vit_b_16(weights=None, num_classes=10), adamw),
    "resnet50_32px_bs128": image_case("bf16-mixed", 128, 32, lambda zoo: zoo.resnet50(weights=None, num_classes=10), sgd, True),
    "resnet50_224px_bs64": image_case("bf16-mixed", 64, 224, lambda zoo: zoo.resnet50(weights=None, num_classes=10), sgd, True),
    "gpt2_124m": dict(precision="bf16-mixed", items=16 * 1024, unit="tokens", make=gpt2, optimizer=adamw, channels_last=False, cuda=True),
    "distilbert": dict(precision="bf16-true", items=12 * 512, unit="tokens", make=distilbert, optimizer=adamw, channels_last=False, cuda=True),
    "bigbird_4096": dict(precision="bf16-true", items=4 * 4096, unit="tokens", make=big_bird, optimizer=adamw, channels_last=False, cuda=True),
    "distilbert_classify": dict(precision="bf16-true", items=12 * 512, unit="tokens", make=distilbert_classify, optimizer=adamw,
                                channels_last=False, cuda=True),
    "vit_tiny_cpu": image_case(
        "32-true", 8, 32, lambda zoo: zoo.VisionTransformer(image_size=32, patch_size=4, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768,
                                                            num_classes=10), adamw, cuda=False),
    # Small images on a CPU: channels_last is the slower setting.
    "resnet18_32px_cpu": image_case("32-true", 16, 32, lambda zoo: zoo.resnet18(weights=None, num_classes=10), sgd, False, cuda=False),
    "resnet18_64px_cpu": image_case("32-true", 8, 64, lambda zoo: zoo.resnet18(weights=None, num_classes=10), sgd, False, cuda=False),
    "resnet18_224px_bs4_cpu": image_case("32-true", 4, 224, lambda zoo: zoo.resnet18(weights=None, num_classes=10), sgd, True, cuda=False),
    "resnet18_224px_cpu": image_case("32-true", 8, 224, lambda zoo: zoo.resnet18(weights=None, num_classes=10), sgd, True, cuda=False),
}


def say(**line):
    print(json.dumps(line), flush=True)


def peak_bytes(torch, cuda):
    if cuda:
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    import resource
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return resident, resident


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(CASES))
        return
    if not options.case:
        parser.error("--case is missing")
    case = CASES[options.case]
    cuda = case["cuda"]
    if not cuda and options.mode not in ("eager", "default"):
        return say(skip=f"{options.mode} is for CUDA")

    warnings.filterwarnings("ignore")
    for name in ("lightning", "lightning.fabric", "lightning.pytorch", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import torch
    try:
        from lightning.fabric import Fabric
    except ImportError:
        from lightning_fabric import Fabric
    if cuda and not torch.cuda.is_available():
        return say(skip="no GPU")
    torch.set_float32_matmul_precision("high")
    if not cuda:
        torch.set_num_threads(2)

    fabric = Fabric(accelerator="cuda" if cuda else "cpu", devices=1, precision=case["precision"])
    fabric.launch()
    torch.manual_seed(0)
    make, data, loss_of = case["make"](torch, fabric.device)
    with fabric.init_module():
        model = make()
    if case["channels_last"]:
        model = model.to(memory_format=torch.channels_last)
    optimizer = case["optimizer"](torch, model.parameters())
    if options.mode != "eager":
        model = torch.compile(model) if options.mode == "default" else torch.compile(model, mode=options.mode)
    net, optimizer = fabric.setup(model, optimizer)
    net.train()

    def synchronize():
        if cuda:
            torch.cuda.synchronize()

    def step():
        loss = loss_of(net, *data)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def timed(steps):
        """Seconds of a step, and the last loss. No loss lives on during a step: a CUDA graph would have to keep it."""
        synchronize()
        start = time.perf_counter()
        for _ in range(steps - 1):
            step()
        loss = step()
        synchronize()
        return (time.perf_counter() - start) / steps, float(loss)

    if cuda:
        torch.cuda.reset_peak_memory_stats()
    first_s, loss = timed(1)
    for _ in range(WARM_UP - 3):
        step()
    step_s, loss = timed(3)
    # A CUDA graph allocates what it needs while it is captured and nothing when it runs.
    if cuda and options.mode != "reduce-overhead":
        torch.cuda.reset_peak_memory_stats()
    steps = max(10 if cuda else 3, min(20, int(options.seconds / options.rounds / step_s)))
    rounds = []
    if options.turns:
        say(ready=options.case)
    while sys.stdin.readline() if options.turns else len(rounds) < options.rounds:
        if options.turns:
            timed(2)
        seconds, loss = timed(steps)
        rounds.append(seconds * 1e3)
        if options.turns:
            say(round=round(rounds[-1], 4))
    if not rounds:
        parser.error("no round was asked for")
    ms = statistics.median(rounds)
    peak, reserved = peak_bytes(torch, cuda)
    say(name=options.case, mode=options.mode, precision=case["precision"], first_s=round(first_s, 4), ms=round(ms, 4),
        spread=[round(min(rounds), 4), round(max(rounds), 4)], peak_gb=round(peak / 1e9, 3), reserved_gb=round(reserved / 1e9, 3), loss=loss,
        steps=steps * len(rounds), **{f"{case['unit']}_per_s": round(case["items"] / ms * 1e3, 1)})


if __name__ == "__main__":
    main()
