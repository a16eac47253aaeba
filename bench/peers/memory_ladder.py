"""The peer of memory_ladder.cpp: the same ladder by torchvision's models through Lightning Fabric and its FSDP on one GPU.

    python memory_ladder.py [--only NAME,...] [--steps N]
"""
import argparse
import contextlib
import functools
import gc
import json
import logging
import os
import subprocess
import sys
import time
import warnings

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.fabric", "lightning_fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
import torch
import torch.nn.functional as F
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

try:
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import FSDPStrategy
except ImportError:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import FSDPStrategy


def say(case, what, value, unit, digits=3):
    print(json.dumps({"case": f"{case}, {what}", "value": round(value, digits), "unit": unit}), flush=True)


def forget():
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def measure(case, step, warm, steps):
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    say(case, "step", (time.perf_counter() - start) / steps * 1e3, "ms")
    say(case, "peak memory", torch.cuda.max_memory_allocated() / 1e9, "GB")
    say(case, "reserved memory", torch.cuda.max_memory_reserved() / 1e9, "GB")


def micro_batches(fabric, net, opt, loss, accumulate, strategy):
    """A function that is one micro-batch, and a step of the optimizer after every `accumulate` of them."""
    calls = 0

    def step():
        nonlocal calls
        calls += 1
        last = calls % accumulate == 0
        # FSDP with offloaded parameters cannot hold gradients back: it reduces those of every micro-batch.
        with fabric.no_backward_sync(net, enabled=not last) if accumulate > 1 and not strategy else contextlib.nullcontext():
            fabric.backward(loss() / accumulate)
        if last:
            opt.step()
            opt.zero_grad()

    return step


def train(case, make, batch, precision="bf16-true", optimizer="adam", accumulate=1, born_on_device=False, strategy=None, warm=4, steps=12):
    fabric = Fabric(accelerator="cuda", devices=1, precision=precision, **({"strategy": strategy} if strategy else {}))
    fabric.launch()
    torch.manual_seed(0)
    scope = fabric.init_module(empty_init=False) if strategy or born_on_device else contextlib.nullcontext()
    with scope:
        model = make(weights=None, num_classes=10)
    optimize = (lambda p: torch.optim.Adam(p, lr=5e-5)) if optimizer == "adam" else (lambda p: torch.optim.SGD(p, lr=0.01))
    if strategy:  # FSDP makes new parameters, so the optimizer comes after it
        net = fabric.setup_module(model)
        opt = fabric.setup_optimizers(optimize(net.parameters()))
    else:
        net, opt = fabric.setup(model, optimize(model.parameters()))
    net.train()
    x = torch.randn(batch, 3, 224, 224, device=fabric.device)
    y = torch.randint(0, 10, (batch,), device=fabric.device)
    measure(case, micro_batches(fabric, net, opt, lambda: F.cross_entropy(net(x), y), accumulate, strategy), warm, steps)


def cases():
    from torchvision.models import vit_h_14, vit_l_16
    from torchvision.models.vision_transformer import EncoderBlock
    blocks = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={EncoderBlock})
    sized = functools.partial(size_based_auto_wrap_policy, min_num_params=2_000_000)
    large = functools.partial(train, make=vit_l_16)
    portions = functools.partial(large, batch=4, accumulate=4)
    yield "vit_l16_fp32_bs64", functools.partial(large, batch=64, precision="32-true")
    yield "vit_l16_16mixed_bs64", functools.partial(large, batch=64, precision="16-mixed")
    yield "vit_l16_bf16mixed_bs64", functools.partial(large, batch=64, precision="bf16-mixed")
    yield "vit_l16_bf16true_bs64", functools.partial(large, batch=64)
    yield "vit_l16_bf16true_bs16", functools.partial(large, batch=16)
    yield "vit_l16_bf16true_bs4_acc4", portions
    yield "vit_l16_bf16true_bs4_acc4_sgd", functools.partial(portions, optimizer="sgd")
    yield "vit_l16_bf16true_bs4_acc4_sgd_init", functools.partial(portions, optimizer="sgd", born_on_device=True)
    # Strategies are made when their case runs: each belongs to one Fabric.
    everything = dict(auto_wrap_policy=blocks, activation_checkpointing_policy={EncoderBlock}, cpu_offload=True)
    yield "vit_l16_end_bs4_acc4", lambda case, **more: portions(case, optimizer="sgd", strategy=FSDPStrategy(**everything), **more)
    for name, options in (("default", {}), ("transformer_wrap", dict(auto_wrap_policy=blocks)), ("size_2M", dict(auto_wrap_policy=sized)),
                          ("act_ckpt", dict(auto_wrap_policy=blocks, activation_checkpointing_policy={EncoderBlock})),
                          ("act_ckpt_offload", everything)):
        def huge(case, options=options, **more):
            train(case, vit_h_14, 16, optimizer="sgd", strategy=FSDPStrategy(**options), warm=3, **{"steps": 8, **more})
        yield f"vit_h14_fsdp1_{name}_bs16_sgd_bf16true", huge


def main(cases, program):
    """Runs what `cases` yields: (name, function); `program` is the file that has them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=0)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(json.dumps({"skip": "no GPU"}))
        return
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29633")
    only = [name for name in options.only.split(",") if name]
    for case, run in cases():
        if only and case not in only:
            continue
        # FSDP does not let go of everything when it goes: each of its cases has a process of its own.
        if ("fsdp" in case or "_end_" in case) and only != [case]:
            subprocess.run([sys.executable, program, "--only", case, "--steps", str(options.steps)])
            continue
        forget()
        try:
            run(case, **({"steps": options.steps} if options.steps else {}))
        except Exception as error:  # one that the peer cannot do must not hide the rest
            print(json.dumps({"case": case, "error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}), flush=True)
        forget()


if __name__ == "__main__":
    main(cases, __file__)
