#!/usr/bin/env python3
"""Writes the states of optimizers that tests/checkpoint loads, from torch itself; or compares one that Levin has written.

    python make_optimizer_fixtures.py                 # writes fixtures/optimizer/ beside this file
    python make_optimizer_fixtures.py FILE WEIGHTS    # steps on from Levin's state, and compares with Levin's weights

The model is tied: an embedding, a layer, and a head that is the embedding. Both sides compute weights and gradients from
the same formula (`filled` here and in optimizer_test.cpp).
"""
import pathlib
import sys

try:
    import torch
except ImportError as error:
    print(error)
    sys.exit(77)

HERE = pathlib.Path(__file__).parent / "fixtures" / "optimizer"
SHAPES = [(6, 4), (4, 4), (4,)]
STEPS = 3


def filled(shape, tensor, time):
    count = torch.Size(shape).numel()
    return torch.tensor([((i * 7 + tensor * 3 + time * 5) % 11 - 5) / 8 for i in range(count)]).reshape(shape)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Parameter(filled(SHAPES[0], 0, 0))
        self.weight = torch.nn.Parameter(filled(SHAPES[1], 1, 0))
        self.bias = torch.nn.Parameter(filled(SHAPES[2], 2, 0))
        self.head = self.embedding


def make(name, net):
    groups = [{"params": [net.embedding, net.weight]}, {"params": [net.bias], "lr": 0.05, "weight_decay": 0.0}]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.95))
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def step(net, optimizer, time):
    for i, param in enumerate(net.parameters()):
        param.grad = filled(param.shape, i, time)
    optimizer.step()


def trained(name, steps):
    net = Tied()
    optimizer = make(name, net)
    for time in range(1, steps + 1):
        step(net, optimizer, time)
    return net, optimizer


if len(sys.argv) > 1:
    net, _ = trained("adamw", STEPS)
    optimizer = make("adamw", net)
    optimizer.load_state_dict(torch.load(sys.argv[1], weights_only=True))
    assert len(optimizer.state) == len(SHAPES), "the state is not that of these parameters"
    step(net, optimizer, STEPS + 1)
    for name, expected in torch.load(sys.argv[2], weights_only=True).items():
        assert torch.allclose(net.get_parameter(name), expected, rtol=1e-6, atol=1e-7), name
    print(f"{len(SHAPES)} parameters: equal")
    sys.exit(0)

HERE.mkdir(parents=True, exist_ok=True)
for name in ("adamw", "sgd"):
    net, optimizer = trained(name, STEPS)
    torch.save(optimizer.state_dict(), HERE / f"{name}.pt")
    torch.save({key: value.detach() for key, value in trained(name, STEPS + 1)[0].named_parameters()},
               HERE / f"{name}_next.pt")
# What Lightning writes, in the parts that are read.
net, adamw = trained("adamw", STEPS)
_, sgd = trained("sgd", STEPS)
torch.save({"epoch": 1, "global_step": STEPS, "pytorch-lightning_version": "2.5.0", "state_dict": net.state_dict(),
            "optimizer_states": [adamw.state_dict()], "lr_schedulers": []}, HERE / "lightning.ckpt")
torch.save({"state_dict": net.state_dict(), "optimizer_states": [sgd.state_dict(), adamw.state_dict()]},
           HERE / "two.ckpt")
