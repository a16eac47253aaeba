"""Writes what decoder_test.cpp compares with: tiny models of transformers as it saves them, with outputs and gradients. Run:
python tests/models/make_decoder_fixtures.py
"""
import pathlib
import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).parent / "fixtures" / "gpt"


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=37, n_positions=12, n_embd=16, n_layer=2, n_head=2, n_inner=24, resid_pdrop=0,
                                      embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0))


def llama():
    return LlamaForCausalLM(LlamaConfig(vocab_size=37, max_position_embeddings=12, hidden_size=16, num_hidden_layers=2,
                                        num_attention_heads=2, num_key_value_heads=2, intermediate_size=24,
                                        tie_word_embeddings=False, rms_norm_eps=1e-5))


def saved(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(pathlib.Path(folder) / "model.safetensors")


def loss_of(logits, tokens):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def write(name, make):
    torch.manual_seed(11)
    model = make().eval()
    with torch.no_grad():
        for p in model.parameters():  # away from zeros and ones, which would hide mistakes
            p.add_(torch.randn_like(p) * 0.2)
    save_file(saved(model), HERE / f"{name}.safetensors", {"format": "pt"})
    tokens = torch.randint(0, 37, (3, 10))
    out = {"tokens": tokens, "logits": model(tokens).logits.detach()}
    model = model.double()
    logits = model(tokens).logits
    loss = loss_of(logits, tokens)
    loss.backward()
    out |= {"logits64": logits.detach(), "loss64": loss.detach().reshape(1)}
    kept = saved(model)
    for key, p in model.named_parameters():
        if key in kept:  # a tied weight is saved, and compared, once
            out[f"grad.{key}"] = p.grad
    save_file({key: value.contiguous() for key, value in out.items()}, HERE / f"{name}_outputs.safetensors")


if __name__ == "__main__":
    HERE.mkdir(parents=True, exist_ok=True)
    write("gpt2", gpt2)
    write("llama", llama)
