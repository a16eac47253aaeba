"""Writes what lora_test.cpp compares with: adapters of PEFT for the models of make_language_fixtures.py. Run:
python tests/models/make_lora_fixtures.py
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


def write(name, config):
    torch.manual_seed(len(name))
    base = T.AutoModelForCausalLM.from_pretrained(BASES / name, dtype=torch.float32)
    net = get_peft_model(base, config).eval()
    with torch.no_grad():
        for key, p in net.named_parameters():
            if "lora_" in key:
                p.add_(torch.randn_like(p) * 0.3)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    net.save_pretrained(folder)
    (folder / "README.md").unlink()
    kept = json.loads((folder / "adapter_config.json").read_text()) | {"base_model_name_or_path": name}
    (folder / "adapter_config.json").write_text(json.dumps(kept, indent=2) + "\n")
    ids = torch.randint(2, 50, (2, 9))
    logits = net(ids).logits
    F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    out = {"ids": ids, "logits": logits.detach()}
    for key, p in net.named_parameters():
        if p.grad is not None:
            out["grad." + key.replace(".default", "")] = p.grad
    save_file(out, folder / "outputs.st")


def compare(original, saved):
    out = load_file(original / "outputs.st")
    net = PeftModel.from_pretrained(T.AutoModelForCausalLM.from_pretrained(BASES / original.name, dtype=torch.float32), saved).eval()
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
        for item in ADAPTERS.items():
            write(*item)
