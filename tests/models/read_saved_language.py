"""Loads model folders that Levin saved with transformers and compares logits with the outputs beside the originals.

    python read_saved_language.py ORIGINAL SAVED [ORIGINAL SAVED]...
"""
import pathlib
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

paths = [pathlib.Path(word) for word in sys.argv[1:]]
for original, saved in zip(paths[::2], paths[1::2]):
    out = load_file(original / "outputs.st")
    masked = "head" in out
    kind = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    model, report = kind.from_pretrained(saved, output_loading_info=True, attn_implementation="eager" if "gemma2" in str(saved) else None)
    if any(report.get(key) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit(f"read_saved_language: {saved}: {report}")
    with torch.no_grad():
        if masked:
            found = model(out["ids"], attention_mask=out["mask"], **({"token_type_ids": out["types"]} if "types" in out else {})).logits
            found, expected = found * out["mask"].unsqueeze(2), out["head"] * out["mask"].unsqueeze(2)
        else:
            found, expected = model(out["ids"]).logits, out["logits"]
    if not torch.allclose(found, expected, atol=1e-5, rtol=1e-5):
        sys.exit(f"read_saved_language: {saved}: {(found - expected).abs().max()}")
print(f"{len(paths) // 2} folders: equal")
