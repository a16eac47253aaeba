"""The peer of text_ladder.cpp: the same ladder by transformers' models through Lightning Fabric and its FSDP on one GPU.

    python text_ladder.py [--only NAME,...] [--steps N]
"""
import contextlib
import functools
import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import memory_ladder as ladder
import torch
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import BigBirdConfig, BigBirdForSequenceClassification, DistilBertConfig, DistilBertForSequenceClassification
from transformers.models.big_bird.modeling_big_bird import BigBirdLayer
from transformers.models.distilbert.modeling_distilbert import TransformerBlock

MODELS = {
    "distilbert": (lambda: DistilBertForSequenceClassification(DistilBertConfig(num_labels=2)), 12, 512, TransformerBlock, ["q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"]),
    "big_bird": (lambda: BigBirdForSequenceClassification(BigBirdConfig(num_labels=2)), 4, 4096, BigBirdLayer, ["query", "key", "value", "dense"]),
}


def with_lora(model, name, targets):
    from peft import LoraConfig, get_peft_model
    # The dense layers of BigBird's blocks, not those of its head.
    where = rf".*layer\.\d+\..*\.({'|'.join(targets)})" if name == "big_bird" else targets
    heads = ["classifier", "pre_classifier"]
    return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=8, target_modules=where, modules_to_save=heads))


def train(case, name, precision="bf16-true", optimizer="adam", accumulate=1, checkpointing=False, strategy=None, lora=False, warm=4, steps=8):
    make, batch, length, block, targets = MODELS[name]
    batch //= accumulate
    options = {}
    if strategy:
        blocks = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})
        options["strategy"] = ladder.FSDPStrategy(auto_wrap_policy=blocks, activation_checkpointing_policy={block}, cpu_offload=True)
    fabric = ladder.Fabric(accelerator="cuda", devices=1, precision=precision, **options)
    fabric.launch()
    torch.manual_seed(0)
    with fabric.init_module(empty_init=False) if strategy else contextlib.nullcontext():
        model = make()
    if lora:
        model = with_lora(model, name, targets)
    if checkpointing:
        model.gradient_checkpointing_enable()
        if lora:
            model.enable_input_require_grads()
    optimize = (lambda p: torch.optim.Adam(p, lr=5e-5)) if optimizer == "adam" else (lambda p: torch.optim.SGD(p, lr=0.01))
    if strategy:  # FSDP makes new parameters, so the optimizer comes after it
        net = fabric.setup_module(model)
        opt = fabric.setup_optimizers(optimize(net.parameters()))
    else:
        net, opt = fabric.setup(model, optimize([p for p in model.parameters() if p.requires_grad]))
    net.train()
    ids = torch.randint(5, 30000, (batch, length), device=fabric.device)
    labels = torch.randint(0, 2, (batch,), device=fabric.device)
    loss = lambda: net(input_ids=ids, labels=labels).loss
    ladder.measure(case, ladder.micro_batches(fabric, net, opt, loss, accumulate, strategy), warm, steps)


def cases():
    for name in MODELS:
        run = functools.partial(train, name=name)
        yield f"{name}_fp32", functools.partial(run, precision="32-true")
        yield f"{name}_bf16mixed", functools.partial(run, precision="bf16-mixed")
        yield f"{name}_bf16true", run
        yield f"{name}_ckpt", functools.partial(run, checkpointing=True)
        yield f"{name}_ckpt_acc4", functools.partial(run, checkpointing=True, accumulate=4)
        yield f"{name}_ckpt_acc4_sgd", functools.partial(run, checkpointing=True, accumulate=4, optimizer="sgd")
        yield f"{name}_end_acc4", functools.partial(run, accumulate=4, optimizer="sgd", strategy=True)
        yield f"{name}_lora", functools.partial(run, checkpointing=True, lora=True)


if __name__ == "__main__":
    ladder.main(cases, __file__)
