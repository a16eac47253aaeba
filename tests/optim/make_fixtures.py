"""Writes the numbers that tests/optim compares with, from torch itself.

    python make_fixtures.py            # writes fixtures/*.json beside this file

Inputs are not stored: both sides compute them from the same integer hash (`number` here, `number` in fixtures.h).
"""

import json
import math
import pathlib
import warnings

import torch

warnings.filterwarnings("ignore")
HERE = pathlib.Path(__file__).parent / "fixtures"
SHAPES = [[(3, 5), (7,), ()], [(2, 3, 4), (1,)]]
STEPS = 10
SNAPSHOTS = (1, 5, 10)


def number(tensor, element, time):
    x = (element * 2654435761 + tensor * 40503 + time * 69069 + 12345) % 2**32
    x ^= x >> 15
    x = (x * 2246822519) % 2**32
    return ((x >> 13) % 2001 - 1000) / 1024


def filled(shape, dtype, tensor, time):
    count = math.prod(shape)
    return torch.tensor([number(tensor, i, time) for i in range(count)], dtype=dtype).reshape(shape)


def has_grad(tensor, step):
    return not (tensor == 1 and step in (1, 5))


class Lion(torch.optim.Optimizer):
    """The algorithm of the paper, written out."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = torch.sign(beta1 * m + (1 - beta1) * p.grad)
                p.copy_(p - group["lr"] * (update + group["weight_decay"] * p))
                m.copy_(beta2 * m + (1 - beta2) * p.grad)


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of the paper, written out, with the switches that published implementations have."""

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=1e-2,
        bias_correction=True,
        always_adapt=False,
        max_trust_ratio=None,
        maximize=False,
    ):
        options = dict(locals())
        del options["self"], options["params"], options["__class__"]
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = -p.grad if group["maximize"] else p.grad
                state = self.state[p]
                if not state:
                    state.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["step"] += 1
                m, v, t = state["exp_avg"], state["exp_avg_sq"], state["step"].item()
                m.copy_(beta1 * m + (1 - beta1) * grad)
                v.copy_(beta2 * v + (1 - beta2) * grad * grad)
                first, second = (1 - beta1**t, 1 - beta2**t) if group["bias_correction"] else (1, 1)
                update = (m / first) / ((v / second).sqrt() + group["eps"]) + group["weight_decay"] * p
                ratio = 1.0
                if group["weight_decay"] != 0 or group["always_adapt"]:
                    of_param, of_update = p.norm().item(), update.norm().item()
                    ratio = of_param / of_update if of_param > 0 and of_update > 0 else 1.0
                    if group["max_trust_ratio"] is not None:
                        ratio = min(ratio, group["max_trust_ratio"])
                p.copy_(p - group["lr"] * ratio * update)


OPTIMIZERS = [
    ("SGD", dict(), dict(lr=0.05)),
    ("SGD", dict(lr=0.1, momentum=0.9), dict(lr=0.05)),
    ("SGD", dict(lr=0.1, momentum=0.9, weight_decay=0.02, nesterov=True), dict(weight_decay=0.3)),
    ("SGD", dict(lr=0.1, momentum=0.8, dampening=0.3, maximize=True), dict(momentum=0.0)),
    ("Adam", dict(), dict(lr=0.01)),
    ("Adam", dict(lr=0.02, betas=[0.8, 0.95], eps=1e-6, weight_decay=0.1), dict(betas=[0.7, 0.9])),
    ("Adam", dict(lr=0.02, amsgrad=True, maximize=True), dict(weight_decay=0.2)),
    ("AdamW", dict(), dict(lr=0.01)),
    ("AdamW", dict(lr=0.02, betas=[0.8, 0.95], weight_decay=0.3), dict(weight_decay=0.0)),
    ("AdamW", dict(lr=0.02, amsgrad=True, eps=1e-3), dict(eps=1e-5)),
    ("Adagrad", dict(), dict(lr=0.05)),
    ("Adagrad", dict(lr=0.1, lr_decay=0.1, weight_decay=0.05, initial_accumulator_value=0.2), dict(eps=1e-3)),
    ("Adagrad", dict(lr=0.1, maximize=True), dict(lr_decay=0.5)),
    ("Adafactor", dict(), dict(lr=0.05)),
    ("Adafactor", dict(lr=0.1, beta2_decay=-0.5, eps=[1e-4, 1e-2], d=1.5, weight_decay=0.1), dict(weight_decay=0.0)),
    ("Adafactor", dict(lr=0.1, maximize=True), dict(d=2.0)),
    ("Lion", dict(), dict(lr=0.003)),
    ("Lion", dict(lr=0.01, betas=[0.8, 0.9], weight_decay=0.1), dict(weight_decay=0.0)),
    ("Lamb", dict(), dict(lr=0.01)),
    ("Lamb", dict(lr=0.1, betas=[0.8, 0.95], eps=1e-4, weight_decay=0.2), dict(weight_decay=0.0)),
    ("Lamb", dict(lr=0.1, weight_decay=0.0, maximize=True), dict(always_adapt=True)),
    ("Lamb", dict(lr=0.1, bias_correction=False, max_trust_ratio=0.4), dict(max_trust_ratio=1.0)),
]


def numbers(tensor):
    digits = 9 if tensor.dtype == torch.float32 else 17
    return [float(f"%.{digits}g" % x) for x in tensor.detach().flatten().double().tolist()]


def run_optimizer(name, options, override, dtype):
    params = []
    groups = []
    for shapes in SHAPES:
        group = []
        for shape in shapes:
            group.append(torch.nn.Parameter(filled(shape, dtype, len(params), 0)))
            params.append(group[-1])
        groups.append({"params": group})
    groups[1].update(override)
    optimizer = {"Lion": Lion, "Lamb": Lamb}.get(name) or getattr(torch.optim, name)
    optimizer = optimizer(groups, **options)
    snapshots = {}
    for step in range(1, STEPS + 1):
        for k, p in enumerate(params):
            p.grad = filled(p.shape, dtype, k, step) if has_grad(k, step) else None
        optimizer.step()
        if step in SNAPSHOTS:
            snapshots[str(step)] = [numbers(p) for p in params]
    state = {
        str(k): {n: float(v.double().sum()) if torch.is_tensor(v) else float(v) for n, v in s.items() if v is not None}
        for k, s in optimizer.state_dict()["state"].items()
    }
    return dict(
        optimizer=name, dtype=str(dtype).split(".")[1], options=options, override=override, snapshots=snapshots, state=state
    )


def optimizers():
    return [run_optimizer(*case, dtype) for case in OPTIMIZERS for dtype in (torch.float32, torch.float64)]


def clipping():
    cases = []
    for dtype in (torch.float32, torch.float64):
        for norm_type in (1.0, 2.0, 3.5, math.inf):
            for max_norm in (0.5, 1e4):
                params = [torch.nn.Parameter(filled(s, dtype, k, 0)) for k, s in enumerate(sum(SHAPES, []))]
                for k, p in enumerate(params):
                    p.grad = filled(p.shape, dtype, k, 1) if has_grad(k, 1) else None
                total = torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type)
                cases.append(
                    dict(
                        dtype=str(dtype).split(".")[1],
                        norm_type="inf" if math.isinf(norm_type) else norm_type,
                        max_norm=max_norm,
                        total=float(total),
                        grads=[numbers(p.grad) if p.grad is not None else None for p in params],
                    )
                )
    return cases


def sgd(momentum=0.9):
    p, q = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    return torch.optim.SGD([{"params": [p]}, {"params": [q], "lr": 0.03}], lr=0.1, momentum=momentum)


def adam():
    p, q = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    return torch.optim.AdamW([{"params": [p]}, {"params": [q], "lr": 0.03}], lr=0.1)


L = torch.optim.lr_scheduler
SCHEDULERS = {
    "StepLR": (sgd, lambda o: L.StepLR(o, 7, 0.5)),
    "MultiStepLR": (sgd, lambda o: L.MultiStepLR(o, [3, 10, 10, 40], 0.3)),
    "ConstantLR": (sgd, lambda o: L.ConstantLR(o, 0.25, 9)),
    "LinearLR": (sgd, lambda o: L.LinearLR(o, 0.1, 1.0, 13)),
    "LinearLR_down": (sgd, lambda o: L.LinearLR(o, 1.0, 0.2, 20)),
    "ExponentialLR": (sgd, lambda o: L.ExponentialLR(o, 0.93)),
    "PolynomialLR": (sgd, lambda o: L.PolynomialLR(o, 30, 1.7)),
    "CosineAnnealingLR": (sgd, lambda o: L.CosineAnnealingLR(o, 20, 0.003)),
    "CosineAnnealingLR_whole": (sgd, lambda o: L.CosineAnnealingLR(o, 64)),
    "WarmRestarts": (sgd, lambda o: L.CosineAnnealingWarmRestarts(o, 5, 2, 0.001)),
    "WarmRestarts_even": (sgd, lambda o: L.CosineAnnealingWarmRestarts(o, 9)),
    "OneCycleLR": (sgd, lambda o: L.OneCycleLR(o, [1.0, 0.5], total_steps=64)),
    "OneCycleLR_three": (
        sgd,
        lambda o: L.OneCycleLR(
            o, 0.7, epochs=8, steps_per_epoch=8, pct_start=0.4, anneal_strategy="linear", base_momentum=0.8,
            max_momentum=[0.9, 0.99], div_factor=10.0, final_div_factor=100.0, three_phase=True,
        ),
    ),
    "OneCycleLR_adam": (adam, lambda o: L.OneCycleLR(o, 0.7, total_steps=64, pct_start=0.25)),
    "OneCycleLR_still": (sgd, lambda o: L.OneCycleLR(o, 0.7, total_steps=64, cycle_momentum=False)),
    "LambdaLR": (sgd, lambda o: L.LambdaLR(o, [lambda e: 0.95**e, lambda e: 1 / (1 + e)])),
    "SWALR": (sgd, lambda o: torch.optim.swa_utils.SWALR(o, [0.05, 0.2], anneal_epochs=12)),
    "SWALR_linear": (sgd, lambda o: torch.optim.swa_utils.SWALR(o, 0.5, anneal_epochs=7, anneal_strategy="linear")),
    "SWALR_at_once": (sgd, lambda o: torch.optim.swa_utils.SWALR(o, 0.5, anneal_epochs=0)),
    "SequentialLR": (
        sgd,
        lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.1, total_iters=5), L.CosineAnnealingLR(o, 30), L.ExponentialLR(o, 0.9)], [5, 35]),
    ),
    "SequentialLR_restarts": (
        sgd,
        lambda o: L.SequentialLR(o, [L.ConstantLR(o, 0.5, 3), L.CosineAnnealingWarmRestarts(o, 6, 2), L.StepLR(o, 4, 0.5)], [4, 30]),
    ),
    "SequentialLR_poly": (
        sgd,
        lambda o: L.SequentialLR(o, [L.MultiStepLR(o, [2, 5], 0.5), L.PolynomialLR(o, 20, 2.0), L.LambdaLR(o, lambda e: 1 / (e + 2))], [8, 30]),
    ),
    "SequentialLR_chained": (
        sgd,
        lambda o: L.SequentialLR(o, [L.ChainedScheduler([L.ConstantLR(o, 0.1, 3), L.ExponentialLR(o, 0.9)]), L.StepLR(o, 9, 0.5)], [12]),
    ),
    "ChainedScheduler": (sgd, lambda o: L.ChainedScheduler([L.ConstantLR(o, 0.1, 4), L.ExponentialLR(o, 0.9)])),
    "ChainedScheduler_three": (
        sgd,
        lambda o: L.ChainedScheduler([L.LinearLR(o, 0.2, 1.0, 8), L.CosineAnnealingLR(o, 40, 0.001), L.MultiStepLR(o, [20], 0.5)]),
    ),
}

PLATEAUS = {
    "plain": dict(patience=2),
    "max_abs": dict(mode="max", factor=0.3, patience=1, threshold=0.05, threshold_mode="abs", cooldown=2),
    "min_abs": dict(factor=0.5, patience=0, threshold=0.2, threshold_mode="abs", min_lr=[0.01, 0.002]),
    "max_rel": dict(mode="max", factor=0.5, patience=3, threshold=0.1, cooldown=1, min_lr=0.004, eps=1e-3),
}


def reading(optimizer):
    groups = optimizer.param_groups
    momentum = [g["betas"][0] if "betas" in g else g["momentum"] for g in groups]
    return [[g["lr"] for g in groups], momentum]


def schedulers():
    out = {}
    for name, (make_optimizer, make) in SCHEDULERS.items():
        optimizer = make_optimizer()
        scheduler = make(optimizer)
        series = [reading(optimizer)]
        for _ in range(63):
            optimizer.step()
            scheduler.step()
            series.append(reading(optimizer))
        out[name] = dict(lr=[s[0] for s in series], momentum=[s[1] for s in series])
    return out


def plateaus():
    out = {}
    for name, options in PLATEAUS.items():
        optimizer = sgd()
        scheduler = L.ReduceLROnPlateau(optimizer, **options)
        series = []
        for epoch in range(70):
            scheduler.step(metric(epoch))
            series.append([g["lr"] for g in optimizer.param_groups])
        out[name] = dict(options=options, lr=series)
    return out


def metric(epoch):
    return number(3, epoch, 0) * 0.3 + 1 / (1 + epoch * 0.25)


def write(name, value):
    (HERE / f"{name}.json").write_text(json.dumps(value, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    write("optimizers", optimizers())
    write("clip", clipping())
    write("schedulers", schedulers())
    write("plateaus", plateaus())
