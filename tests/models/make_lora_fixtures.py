"""Writes what lora_test.cpp compares with: adapters of PEFT for the models of make_language_fixtures.py. Run:
python tests/models/make_lora_fixtures.py    (those that are there stay)
With ORIGINAL SAVED pairs of folders as arguments it loads adapters that Levin saved and compares logits instead.
"""
import json
import pathlib
import shutil
import sys

import torch
import torch.nn.functional as F
import transformers as T
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

BASES = pathlib.Path(__file__).parent / "fixtures" / "language"
HERE = pathlib.Path(__file__).parent / "fixtures" / "lora"
ADAPTERS = {
    "llama": LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.1),
    "gpt2": LoraConfig(r=2, lora_alpha=5, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True),
    "bloom": LoraConfig(r=2, lora_alpha=8, target_modules=["query_key_value"], use_rslora=True),
    "gpt_neox": LoraConfig(r=2, lora_alpha=8, target_modules=["query_key_value", "dense"], rank_pattern={"dense": 3},
                           alpha_pattern={"layers.1.attention.dense": 4}),
}
# Modules that are trained whole: base, classes of its head (0: causal), adapter.
WHOLE = {
    "llama_whole": ("llama", 0, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head", "model.norm"])),
    "gpt2_whole": ("gpt2", 0, LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], modules_to_save=["lm_head", "h.1.mlp.c_fc"], fan_in_fan_out=True)),
    "gpt_neox_whole": ("gpt_neox", 0, LoraConfig(r=2, lora_alpha=4, target_modules=["dense"], modules_to_save=["lm_head", "layers.0.attention.query_key_value"])),
    "gpt2_classes": ("gpt2_sequence", 3, LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True)),
    "bert_classes": ("bert_sequence", 3, LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["query", "value"], modules_to_save=["pooler"])),
    "distilbert_classes": ("distilbert_sequence", 3, LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["q_lin"])),
}


def base_of(name):
    """The model under the adapters of a fixture."""
    name, classes = WHOLE[name][:2] if name in WHOLE else (name, 0)
    kind = T.AutoModelForSequenceClassification if classes else T.AutoModelForCausalLM
    return kind.from_pretrained(BASES / name, dtype=torch.float32)


def write(name, config):
    torch.manual_seed(len(name))
    net = get_peft_model(base_of(name), config).eval()
    with torch.no_grad():
        for key, p in net.named_parameters():
            if "lora_" in key or "modules_to_save" in key:
                p.add_(torch.randn_like(p) * 0.3)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    net.save_pretrained(folder)
    (folder / "README.md").unlink()
    kept = json.loads((folder / "adapter_config.json").read_text()) | {"base_model_name_or_path": name}
    (folder / "adapter_config.json").write_text(json.dumps(kept, indent=2) + "\n")
    ids = torch.randint(2, 50, (2, 9))
    logits = net(ids).logits
    if logits.dim() == 2:
        F.cross_entropy(logits, torch.tensor([2, 0])).backward()
    else:
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    out = {"ids": ids, "logits": logits.detach()}
    for key, p in net.named_parameters():
        if p.grad is not None:
            out["grad." + key.replace("modules_to_save.", "").replace(".default", "")] = p.grad
    save_file(out, folder / "outputs.st")


def compare(original, saved):
    out = load_file(original / "outputs.st")
    net = PeftModel.from_pretrained(base_of(original.name), saved).eval()
    found = net(out["ids"]).logits
    if not torch.allclose(found, out["logits"], atol=1e-5):
        sys.exit(f"make_lora_fixtures: {saved}: {(found - out['logits']).abs().max()}")


if __name__ == "__main__":
    T.logging.set_verbosity_error()
    paths = [pathlib.Path(word) for word in sys.argv[1:]]
    for pair in zip(paths[::2], paths[1::2]):
        compare(*pair)
    if paths:
        print(f"{len(paths) // 2} adapters: equal")
    else:
        for item in [*ADAPTERS.items(), *((name, config) for name, (_, _, config) in WHOLE.items())]:
            if not (HERE / item[0]).exists():
                write(*item)
