"""Writes what naming_test and load_weights_test compare with: the same tiny models in torchvision, timm and transformers, each
saved by its own library. Before a file is written, its model is shown to give the outputs of the torchvision one.

    python make_naming_fixtures.py
    python make_naming_fixtures.py check FOLDER     what Levin wrote there loads strictly in each library, with equal outputs
"""
import json
import pathlib
import sys
import tempfile

import timm
import torch
import torchvision
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torchvision.models import resnet as tv_resnet
from torchvision.models import vision_transformer as tv_vit
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

HERE = pathlib.Path(__file__).parent / "fixtures" / "naming"
VIT = dict(image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16, num_classes=5)


def tv_model():
    return tv_vit.VisionTransformer(**VIT)


def timm_model():
    return TimmViT(img_size=16, patch_size=8, embed_dim=8, depth=2, num_heads=2, mlp_ratio=2, num_classes=5)


def hf_vit_config():
    return ViTConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8,
                     num_labels=5, layer_norm_eps=1e-6)


class TinyResNet(tv_resnet.ResNet):
    """torchvision's own, with fewer channels: its constructor has them written in."""

    def __init__(self, block, widths):
        super().__init__(block, [1, 1, 1, 1], num_classes=5)
        self.inplanes = 4
        self.conv1 = torch.nn.Conv2d(3, 4, 7, 2, 3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(4)
        for i, width in enumerate(widths):
            setattr(self, f"layer{i + 1}", self._make_layer(block, width, 1, stride=1 if i == 0 else 2))
        self.fc = torch.nn.Linear(widths[-1] * block.expansion, 5)


def hf_resnet_config(kind, sizes):
    return ResNetConfig(embedding_size=4, hidden_sizes=sizes, depths=[1, 1, 1, 1], layer_type=kind, num_labels=5)


def saved_by_transformers(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(pathlib.Path(folder) / "model.safetensors")


def from_transformers(kind, config, state):
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        save_file(state, pathlib.Path(folder) / "model.safetensors", metadata={"format": "pt"})
        model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model


def randomize(model):
    with torch.no_grad():
        for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) * 0.4 + (0.8 if "running_var" in name else -0.2))
            else:
                tensor.fill_(3)
    return model.eval()


def outputs(model, images):
    with torch.no_grad():
        result = model.eval()(images)
    return result if isinstance(result, torch.Tensor) else result.logits


def vit_to_timm(state):
    """Written apart from Levin's tables on purpose, by hand for these two layers."""
    result = {"cls_token": state["class_token"], "pos_embed": state["encoder.pos_embedding"]}
    for end in ("weight", "bias"):
        result[f"patch_embed.proj.{end}"] = state[f"conv_proj.{end}"]
        result[f"norm.{end}"] = state[f"encoder.ln.{end}"]
        result[f"head.{end}"] = state[f"heads.head.{end}"]
        for i in range(2):
            old, new = f"encoder.layers.encoder_layer_{i}.", f"blocks.{i}."
            result[f"{new}norm1.{end}"] = state[f"{old}ln_1.{end}"]
            result[f"{new}norm2.{end}"] = state[f"{old}ln_2.{end}"]
            result[f"{new}attn.qkv.{end}"] = state[f"{old}self_attention.in_proj_{end}"]
            result[f"{new}attn.proj.{end}"] = state[f"{old}self_attention.out_proj.{end}"]
            result[f"{new}mlp.fc1.{end}"] = state[f"{old}mlp.0.{end}"]
            result[f"{new}mlp.fc2.{end}"] = state[f"{old}mlp.3.{end}"]
    return result


def fill(model, value_of):
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(value_of(name))
    return model.eval()


def vit_to_transformers(state):
    model = ViTForImageClassification(hf_vit_config())
    names = {"vit.embeddings.cls_token": "class_token", "vit.embeddings.position_embeddings": "encoder.pos_embedding"}
    heads = {"vit.embeddings.patch_embeddings.projection": "conv_proj", "vit.layernorm": "encoder.ln", "classifier": "heads.head"}
    inner = {"attention.o_proj": "self_attention.out_proj", "layernorm_before": "ln_1", "layernorm_after": "ln_2", "mlp.fc1": "mlp.0",
             "mlp.fc2": "mlp.3"}

    def value(name):
        if name in names:
            return state[names[name]]
        stem, end = name.rsplit(".", 1)
        if stem in heads:
            return state[f"{heads[stem]}.{end}"]
        i, part = stem.removeprefix("vit.layers.").split(".", 1)
        old = f"encoder.layers.encoder_layer_{i}."
        if part in inner:
            return state[f"{old}{inner[part]}.{end}"]
        return state[f"{old}self_attention.in_proj_{end}"].chunk(3)["qkv".index(part.removeprefix("attention.")[0])]

    return fill(model, value)


def resnet_to_transformers(state, config):
    model = ResNetForImageClassification(config)

    def value(name):
        name = name.replace("resnet.embedder.embedder.convolution", "conv1").replace("resnet.embedder.embedder.normalization", "bn1")
        name = name.replace("classifier.1", "fc").replace("shortcut.convolution", "downsample.0").replace(
            "shortcut.normalization", "downsample.1")
        for stage in range(4):
            name = name.replace(f"resnet.encoder.stages.{stage}.layers", f"layer{stage + 1}")
        for i in range(3):
            name = name.replace(f".layer.{i}.convolution", f".conv{i + 1}").replace(f".layer.{i}.normalization", f".bn{i + 1}")
        return state[name]

    return fill(model, value)


def write(name, state):
    save_file({key: value.contiguous().clone() for key, value in state.items()}, HERE / name, metadata={"format": "pt"})


def same(a, b):
    assert torch.allclose(a, b, atol=2e-6, rtol=1e-5), (a - b).abs().max()


def make():
    HERE.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    images = torch.randn(2, 3, 16, 16)
    vit = randomize(tv_model())
    expected = outputs(vit, images)
    other = timm_model()
    other.load_state_dict(vit_to_timm(vit.state_dict()), strict=True)
    same(outputs(other, images), expected)
    hugging = vit_to_transformers(vit.state_dict())
    same(outputs(hugging, images), expected)
    write("vit_torchvision.safetensors", vit.state_dict())
    write("vit_timm.safetensors", other.state_dict())
    write("vit_huggingface.safetensors", saved_by_transformers(hugging))
    write("vit_transformers5.safetensors", hugging.state_dict())  # its names in memory
    larger = tv_vit.interpolate_embeddings(32, 8, vit.state_dict())
    write("vit_outputs.safetensors", {"images": images, "logits": expected, "positions_32": larger["encoder.pos_embedding"]})
    torch.save({"state_dict": {"net." + k: v for k, v in vit.state_dict().items()}, "epoch": 2}, HERE / "vit_lightning.ckpt")

    images = torch.randn(2, 3, 32, 32)
    for kind, block, sizes in [("basic", tv_resnet.BasicBlock, [4, 8, 8, 8]), ("bottleneck", tv_resnet.Bottleneck, [16, 16, 16, 16])]:
        net = randomize(TinyResNet(block, [size // block.expansion for size in sizes]))
        hugging = resnet_to_transformers(net.state_dict(), hf_resnet_config(kind, sizes))
        same(outputs(hugging, images), outputs(net, images))
        write(f"resnet_{kind}_torchvision.safetensors", net.state_dict())
        write(f"resnet_{kind}_huggingface.safetensors", saved_by_transformers(hugging))
    names()


def names():
    """Names and shapes at their real sizes."""
    def shapes(model):
        return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    with torch.device("meta"):
        result = {"vit_b_16": {"torchvision": shapes(torchvision.models.vit_b_16()), "timm": shapes(timm.create_model(
            "vit_base_patch16_224"))}, "resnet50": {"torchvision": shapes(torchvision.models.resnet50()), "timm": shapes(
                timm.create_model("resnet50")), "huggingface": shapes(ResNetForImageClassification(ResNetConfig(num_labels=1000)))},
            "resnet18": {"torchvision": shapes(torchvision.models.resnet18()), "timm": shapes(timm.create_model("resnet18")),
                         "huggingface": shapes(ResNetForImageClassification(ResNetConfig(
                             hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=1000)))}}
    (HERE / "names.json").write_text(json.dumps(result, separators=(",", ":")))


def check(folder):
    """Files that Levin wrote there: each loads strictly where its name says, and gives the outputs of the original."""
    reference = load_file(HERE / "vit_outputs.safetensors")
    images, expected = reference["images"], reference["logits"]
    found = 0
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".safetensors", ".pth", ".pt"):
            continue
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
        if path.stem.startswith("vit_torchvision"):
            model = tv_model()
            model.load_state_dict(state, strict=True)
        elif path.stem.startswith("vit_timm"):
            model = timm_model()
            model.load_state_dict(state, strict=True)
        elif path.stem.startswith("vit_huggingface"):
            model = from_transformers(ViTForImageClassification, hf_vit_config(), state)
        else:
            continue
        same(outputs(model, images), expected)
        found += 1
    print(f"{found} files load strictly: equal")


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "check":
        check(pathlib.Path(sys.argv[2]))
    else:
        make()
