"""Writes what quantize_test.cpp compares with: weights of bitsandbytes, and a QLoRA run of PEFT. Run:
python tests/models/make_quantize_fixtures.py
With SAVED folders as arguments it opens models that Levin saved with transformers, and compares their logits with those
in outputs.safetensors beside them.
"""
import json
import pathlib
import shutil
import sys

import bitsandbytes.functional as B
import torch
import transformers as T
from bitsandbytes.autograd._functions import MatmulLtState, MatMul8bitLt
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent / "fixtures" / "quantized"


def numbers(*shape, scale=0.05):
    """The same numbers as numbers() of quantize_test.cpp."""
    count = 1
    for size in shape:
        count *= size
    i = torch.arange(count, dtype=torch.int64)
    bits = (i * 2654435761 + 12345) % 2**32
    uniform = (bits >> 8).double() / 2**24 - 0.5
    return (uniform * uniform * uniform * (8 * scale)).float().view(shape)


def cases():
    out = {}
    weight = numbers(128, 256)
    weight[3, 64:128] = 0
    packed, state = B.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    out["nf4.codes"], out["nf4.absmax"] = packed.view(128, -1), state.absmax
    out["nf4.rows"] = B.dequantize_4bit(packed, state)[:5].clone()
    packed, state = B.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
    out["double.absmax"], out["double.nested"] = state.absmax, state.state2.absmax
    out["double.offset"] = state.offset.view(1)
    out["double.rows"] = B.dequantize_4bit(packed, state)[:5].clone()
    small = weight[:48]
    codes, absmax, _ = B.int8_vectorwise_quant(small.half())
    out["int8.codes"], out["int8.absmax"] = codes, absmax
    out["int8.rows"] = B.int8_vectorwise_dequant(codes, absmax)[:5].clone()
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for name, rows in (("one", 1), ("many", 6)):
            x = (numbers(rows, 256, scale=3) * 2).to(dtype)
            x[0, 5] = 7.5
            x[-1, 100] = -9
            lt = MatmulLtState()
            lt.CB, lt.SCB, lt.threshold, lt.has_fp16_weights = codes, absmax, 6.0, False
            bias = numbers(48, scale=1).to(dtype)
            out[f"int8.{name}.{str(dtype)[6:]}"] = MatMul8bitLt.apply(x, codes, None, bias, lt).contiguous()
    save_file(out, HERE / "cases.safetensors")


def tiny():
    torch.manual_seed(5)
    config = T.LlamaConfig(vocab_size=48, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
                           num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
    net = T.LlamaForCausalLM(config)
    with torch.no_grad():
        for p in net.parameters():
            if p.dim() > 1:
                p.copy_((torch.randn_like(p) * 0.15).half())
    return net


def clean(folder):
    for name in ("generation_config.json", "README.md"):
        (folder / name).unlink(missing_ok=True)


def folders():
    base = HERE / "llama"
    net = tiny()
    net.half().save_pretrained(base)
    config = json.loads((base / "config.json").read_text()) | {"dtype": "float32"}
    (base / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    clean(base)
    ids = torch.randint(3, 48, (2, 11))
    for name, options in (("nf4", dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)),
                          ("int8", dict(load_in_8bit=True))):
        packed = T.AutoModelForCausalLM.from_pretrained(base, quantization_config=T.BitsAndBytesConfig(**options),
                                                        device_map="cpu", dtype=torch.float32).eval()
        packed.save_pretrained(HERE / name)
        clean(HERE / name)
        with torch.no_grad():
            save_file({"ids": ids, "logits": packed(ids).logits.float()}, HERE / name / "outputs.st")
    return base


def qlora(base):
    net = T.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        for key, p in net.named_parameters():
            if "_proj" in key:
                packed, state = B.quantize_4bit(p, blocksize=64, quant_type="nf4")
                p.copy_(B.dequantize_4bit(packed, state))
    torch.manual_seed(3)
    net = get_peft_model(net, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]))
    net.save_pretrained(HERE / "adapter")
    clean(HERE / "adapter")
    kept = json.loads((HERE / "adapter/adapter_config.json").read_text()) | {"base_model_name_or_path": "llama"}
    (HERE / "adapter/adapter_config.json").write_text(json.dumps(kept, indent=2) + "\n")
    ids = torch.randint(3, 48, (4, 12))
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3, weight_decay=0.01)
    losses = []
    for _ in range(50):
        loss = net(ids, labels=ids).loss
        losses.append(loss.item())
        loss.backward()
        opt.step()
        opt.zero_grad()
    out = {"ids": ids, "losses": torch.tensor(losses)}
    for key, p in net.named_parameters():
        if "lora_B" in key:
            out[key.replace(".default", "")] = p.detach().clone()
    save_file(out, HERE / "qlora.safetensors")


def compare(folder):
    out = load_file(folder / "outputs.safetensors")
    net = T.AutoModelForCausalLM.from_pretrained(folder, device_map="cpu", dtype=torch.float32).eval()
    layer = net.model.layers[0].mlp.up_proj
    if not isinstance(layer, (Linear4bit, Linear8bitLt)):
        sys.exit(f"make_quantize_fixtures: {folder}: {type(layer)} is not quantized")
    with torch.no_grad():
        found = net(out["ids"]).logits.float()
    if not torch.allclose(found, out["logits"], atol=1e-3):
        sys.exit(f"make_quantize_fixtures: {folder}: {(found - out['logits']).abs().max()}")


if __name__ == "__main__":
    T.logging.set_verbosity_error()
    paths = [pathlib.Path(word) for word in sys.argv[1:]]
    for path in paths:
        compare(path)
    if paths:
        print(f"{len(paths)} folders: equal")
    else:
        shutil.rmtree(HERE, ignore_errors=True)
        HERE.mkdir(parents=True)
        cases()
        qlora(folders())
