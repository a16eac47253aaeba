"""Writes what tests/models/vision_test.cpp compares with: names and shapes of torchvision's models, and what they compute.

    python tests/models/make_vision_fixtures.py             fixtures/vision_names.txt and vision_parity.json
    python tests/models/make_vision_fixtures.py --full DIR  whole models with all gradients, for the comparison by hand (docs/models.md)

Weights are not stored: both sides make them by the same rule (`fill`), which gives the same numbers on every machine."""

import argparse
import json
import math
import pathlib

import torch
import torchvision
from torchvision.models import resnet, vision_transformer

HERE = pathlib.Path(__file__).parent / "fixtures"
NAMES = """vit_b_16 vit_b_32 vit_l_16 vit_l_32 vit_h_14 resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d
resnext101_32x8d resnext101_64x4d wide_resnet50_2 wide_resnet101_2""".split()
CLASSES = 10
PERIOD = 1000003


def make_table():
    """PERIOD numbers in [-1, 1): the bits of a mixed counter, exact in float32."""
    h = torch.arange(PERIOD, dtype=torch.int64)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> shift)) * factor & 0xFFFFFFFF
    h = h ^ (h >> 16)
    return (h >> 8).float() * 2**-23 - 1


TABLE = make_table()


def numbers(name, count):
    """A stretch of the table that begins at the FNV-1a hash of the name."""
    h = 0x811C9DC5
    for byte in name.encode():
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    begin = h % PERIOD
    repeats = (begin + count + PERIOD - 1) // PERIOD
    return TABLE.repeat(repeats)[begin : begin + count]


def fill(name, tensor):
    if name.endswith("num_batches_tracked"):
        return
    values = numbers(name, tensor.numel()).view(tensor.shape)
    if name.endswith(("class_token", "pos_embedding")):
        tensor.copy_(values * 0.5)
    elif name.endswith("running_var"):
        tensor.copy_(values * 0.3 + 1)
    elif tensor.dim() > 1:
        tensor.copy_(values * math.sqrt(3 / (tensor.numel() // tensor.shape[0])))
    elif name.endswith("weight"):
        tensor.copy_(values * 0.1 + 1)
    else:
        tensor.copy_(values * 0.1)


def build(case):
    """The named model of torchvision, with fewer blocks where the case says so."""
    plain_resnet, plain_vit = resnet._resnet, vision_transformer._vision_transformer

    def shorter_resnet(block, layers, weights, progress, **kwargs):
        return plain_resnet(block, case.get("layers", layers), weights, progress, **kwargs)

    def shorter_vit(patch_size, num_layers, num_heads, hidden_dim, mlp_dim, weights, progress, **kwargs):
        kwargs["image_size"] = case["image"]
        return plain_vit(patch_size, case.get("num_layers", num_layers), num_heads, hidden_dim, mlp_dim, weights, progress,
                         **kwargs)

    resnet._resnet, vision_transformer._vision_transformer = shorter_resnet, shorter_vit
    try:
        options = {key: case[key] for key in ("replace_stride_with_dilation", "zero_init_residual") if key in case}
        model = getattr(torchvision.models, case["model"])(num_classes=CLASSES, **options)
    finally:
        resnet._resnet, vision_transformer._vision_transformer = plain_resnet, plain_vit
    if case.get("small_images"):
        model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = torch.nn.Identity()
    return model


def digest(name, tensor):
    """The norm, and the products with two fixed vectors: enough to see any difference, in three numbers."""
    flat = tensor.detach().flatten().double()
    return [flat.norm().item()] + [
        torch.dot(flat, numbers(f"{name}#{i}", flat.numel()).double()).item() for i in (1, 2)
    ]


def compute(case, dtype):
    """Training is computed in `dtype`: normalizing few images amplifies rounding, and in float32 machines differ by more than models."""
    with torch.device("meta"):
        model = build(case)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.zero_()
            fill(name, tensor)
    images = (numbers("images", case["batch"] * 3 * case["image"] ** 2) * 1.7).view(case["batch"], 3, case["image"], -1)
    labels = torch.arange(case["batch"]) * 3 % CLASSES
    result = dict(case)
    with torch.no_grad():
        result["eval_logits"] = model.eval()(images).flatten().tolist()
    model.to(dtype)
    logits = model.train()(images.to(dtype))
    torch.nn.functional.cross_entropy(logits, labels).backward()
    result["logits"] = logits.detach().flatten().tolist()
    return result, model


# Everything of real size that is quick enough, and the rest with the real widths and fewer blocks.
CASES = [
    dict(model="resnet18", batch=4, image=64),
    dict(model="resnet34", batch=4, image=64, layers=[1, 2, 1, 1]),
    dict(model="resnet50", batch=4, image=64),
    dict(model="resnet101", batch=4, image=64, layers=[1, 1, 3, 1]),
    dict(model="resnet152", batch=4, image=64, layers=[1, 2, 1, 1]),
    dict(model="resnext50_32x4d", batch=4, image=64, layers=[1, 1, 1, 1]),
    dict(model="resnext101_32x8d", batch=4, image=64, layers=[1, 1, 1, 1]),
    dict(model="resnext101_64x4d", batch=4, image=64, layers=[1, 1, 1, 1]),
    dict(model="wide_resnet50_2", batch=4, image=64),
    dict(model="wide_resnet101_2", batch=4, image=64, layers=[1, 1, 1, 1]),
    dict(model="resnet50", batch=2, image=64, layers=[1, 2, 2, 2], replace_stride_with_dilation=[False, True, True]),
    dict(model="resnet18", batch=4, image=32, layers=[1, 1, 1, 1], small_images=True),
    dict(model="vit_b_16", batch=2, image=32, num_layers=2),
    dict(model="vit_b_32", batch=2, image=64),
    dict(model="vit_l_16", batch=2, image=32, num_layers=2),
    dict(model="vit_l_32", batch=2, image=64, num_layers=2),
    dict(model="vit_h_14", batch=2, image=28, num_layers=2),
]
PATCHES = dict(vit_b_16=16, vit_b_32=32, vit_l_16=16, vit_l_32=32, vit_h_14=14)


def starts():
    """What a seed gives: a few numbers of each tensor."""
    found = []
    for case in (
        dict(model="resnet18", seed=3, layers=[1, 1, 1, 1]),
        dict(model="resnet50", seed=5, layers=[1, 2, 1, 1], zero_init_residual=True),
        dict(model="wide_resnet50_2", seed=7, layers=[1, 1, 1, 1]),
    ):
        torch.manual_seed(case["seed"])
        rows = [digest(name, p) + p.detach().flatten()[:3].tolist() for name, p in build(case).named_parameters()]
        found.append(dict(case, rows=rows))
    return found


def parity():
    computed = []
    for case in CASES:
        result, model = compute(case, torch.float64)
        result["gradients"] = [digest(name, p.grad) for name, p in model.named_parameters()]
        # After one training batch: the running statistics have moved.
        result["buffers"] = [digest(name, b.float()) for name, b in model.named_buffers()]
        computed.append(result)
        print(case, "logits up to", max(map(abs, result["logits"] + result["eval_logits"])))
    text = json.dumps({"starts": starts(), "cases": computed}, separators=(",", ":"))
    rounded = json.loads(text, parse_float=lambda number: float(f"{float(number):.8g}"))
    (HERE / "vision_parity.json").write_text(json.dumps(rounded, separators=(",", ":")).replace('{"model"', '\n{"model"'))


def names():
    lines = []
    for name in NAMES:
        with torch.device("meta"):
            model = getattr(torchvision.models, name)()
        lines.append(f"{name} {sum(p.numel() for p in model.parameters())} {sum(b.numel() for b in model.buffers())}")
        for path, module in model.named_modules():
            own = list(module.named_parameters(recurse=False)) + list(module.named_buffers(recurse=False))
            if own:
                lines.append(" ".join([f"  {path}:"] + [f"{n}={'x'.join(map(str, t.shape))}" for n, t in own]))
    (HERE / "vision_names.txt").write_text("\n".join(lines) + "\n")


def full(folder, only):
    from safetensors.torch import save_file

    for name in only or NAMES:
        case = dict(model=name, batch=4 if "res" in name else 2, image=64 if "res" in name else 2 * PATCHES[name])
        result, model = compute(case, torch.float32)
        (folder / f"{name}.json").write_text(json.dumps(result))
        save_file({n: p.grad.contiguous() for n, p in model.named_parameters()}, folder / f"{name}.safetensors")
        print(name, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", type=pathlib.Path, metavar="DIR")
    parser.add_argument("models", nargs="*")
    args = parser.parse_args()
    if args.full:
        args.full.mkdir(parents=True, exist_ok=True)
        full(args.full, args.models)
    else:
        names()
        parity()
