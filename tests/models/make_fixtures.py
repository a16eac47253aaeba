"""Writes what tests/models/vit_test.cpp compares with: torchvision's Vision Transformer, tiny, with all its numbers. Run:
python tests/models/make_fixtures.py (make_vision_fixtures.py writes what is about models of real size)"""

import pathlib
import struct

import torch
from torchvision.models import vision_transformer as tv

HERE = pathlib.Path(__file__).parent / "fixtures"
TINY = dict(image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16, num_classes=5)


def write(path, tensors):
    """name, dims and values of each tensor: little-endian, one after the other."""
    with open(path, "wb") as out:
        for name, tensor in tensors.items():
            data = tensor.detach().to(torch.float32).contiguous()
            out.write(struct.pack("<I", len(name)) + name.encode())
            out.write(struct.pack("<I", data.dim()) + struct.pack(f"<{data.dim()}q", *data.shape))
            out.write(data.numpy().tobytes())


def tiny():
    torch.manual_seed(7)
    model = tv.VisionTransformer(**TINY)
    tensors = {f"init.{name}": p.clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():  # the head starts at zero, which would hide every gradient but its own
            p.add_(torch.randn_like(p) * 0.1)
    for name, p in model.named_parameters():
        tensors[f"param.{name}"] = p.clone()
    images = torch.randn(3, 3, 16, 16)
    target = torch.tensor([1, 4, 2])
    model.train()
    logits = model(images)
    torch.nn.functional.cross_entropy(logits, target, label_smoothing=0.1).backward()
    tensors |= {"images": images, "target": target, "logits": logits}
    for name, p in model.named_parameters():
        tensors[f"grad.{name}"] = p.grad
    write(HERE / "vit_tiny.bin", tensors)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    tiny()
