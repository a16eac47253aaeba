"""Loads weight files that Levin saved strictly into torchvision's tiny Vision Transformer and compares its outputs.

    python read_saved.py REFERENCE.safetensors FILE...

REFERENCE has images and logits (fixtures/naming/vit_outputs.safetensors).
"""
import sys

import torch
from safetensors.torch import load_file
from torchvision.models.vision_transformer import VisionTransformer

reference = load_file(sys.argv[1])
for path in sys.argv[2:]:
    model = VisionTransformer(image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16, num_classes=5)
    model.load_state_dict(load_file(path) if path.endswith(".safetensors") else torch.load(path, weights_only=True), strict=True)
    with torch.no_grad():
        logits = model.eval()(reference["images"])
    if not torch.allclose(logits, reference["logits"], atol=2e-6, rtol=1e-5):
        sys.exit(f"read_saved: {path}: {(logits - reference['logits']).abs().max()}")
print(f"{len(sys.argv) - 2} files: equal")
