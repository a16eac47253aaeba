"""Writes what language_test.cpp compares with: tiny models of transformers in folders as it saves them, with outputs and gradients. Run:
python tests/models/make_language_fixtures.py [NAME...]
"""
import json
import pathlib
import shutil
import sys

import torch
import torch.nn.functional as F
import transformers as T
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent / "fixtures" / "language"
VOCAB = 50
MODELS = {}


def model(name, files="safetensors", length=12):
    def keep(make):
        MODELS[name] = (make, files, length)
        return make
    return keep


def gpt2(**more):
    config = dict(vocab_size=VOCAB, n_positions=16, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0)
    return T.GPT2LMHeadModel(T.GPT2Config(**{**config, **more}))


def llama_sizes(**more):
    sizes = dict(vocab_size=VOCAB, max_position_embeddings=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, intermediate_size=20, pad_token_id=None, bos_token_id=0, eos_token_id=0)
    return {**sizes, **more}


def llama(**more):
    return T.LlamaForCausalLM(T.LlamaConfig(**llama_sizes(**more)))


def bloom(**more):
    config = dict(vocab_size=VOCAB, hidden_size=18, n_layer=2, n_head=6, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    return T.BloomForCausalLM(T.BloomConfig(**{**config, **more}))


def opt(**more):
    config = dict(vocab_size=VOCAB, hidden_size=12, num_hidden_layers=2, ffn_dim=20, num_attention_heads=3, max_position_embeddings=16,
                  dropout=0.1, bos_token_id=0, eos_token_id=0, pad_token_id=1)
    return T.OPTForCausalLM(T.OPTConfig(**{**config, **more}))


def neox(**more):
    config = dict(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
                  max_position_embeddings=16, bos_token_id=0, eos_token_id=0)
    return T.GPTNeoXForCausalLM(T.GPTNeoXConfig(**{**config, **more}))


model("gpt2")(lambda: gpt2())
model("gpt2_by_layer", files="sharded")(lambda: gpt2(n_inner=20, scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False))
model("gpt2_bin", files="bin")(lambda: gpt2(activation_function="gelu", scale_attn_weights=False))
model("llama")(lambda: llama(head_dim=6, rms_norm_eps=1e-5))
model("llama_biases", files="sharded_bin")(lambda: llama(tie_word_embeddings=True, attention_bias=True, mlp_bias=True, num_key_value_heads=4))
model("llama_rope3")(lambda: llama(num_key_value_heads=1, rope_parameters=dict(
    rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)))
model("llama_linear", files="old")(lambda: llama(rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=2.5)))
model("llama_dynamic")(lambda: llama(max_position_embeddings=8, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)))
model("llama_yarn")(lambda: llama(rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=8)))
model("mistral")(lambda: T.MistralForCausalLM(T.MistralConfig(**llama_sizes(sliding_window=5, head_dim=4))))
model("qwen2")(lambda: T.Qwen2ForCausalLM(T.Qwen2Config(**llama_sizes(use_sliding_window=True, sliding_window=4, max_window_layers=1,
                                                                      tie_word_embeddings=True))))
model("qwen3")(lambda: T.Qwen3ForCausalLM(T.Qwen3Config(**llama_sizes(hidden_size=14, head_dim=6))))
model("gemma")(lambda: T.GemmaForCausalLM(T.GemmaConfig(**llama_sizes(head_dim=6, num_key_value_heads=1))))
model("gemma2")(lambda: T.Gemma2ForCausalLM(T.Gemma2Config(**llama_sizes(head_dim=6, sliding_window=5, query_pre_attn_scalar=10,
                                                                         attn_logit_softcapping=2.0, final_logit_softcapping=3.0))))
model("bloom")(lambda: bloom())
model("bloom_residual", files="bare")(lambda: bloom(apply_residual_connection_post_layernorm=True, layer_norm_epsilon=1e-3))
model("opt")(lambda: opt())
model("opt_post", files="bare")(lambda: opt(do_layer_norm_before=False, word_embed_proj_dim=10))
model("opt_wide", files="old_norm")(lambda: opt(word_embed_proj_dim=14, tie_word_embeddings=False))
model("galactica")(lambda: opt(enable_bias=False, layer_norm_elementwise_affine=False, activation_function="gelu"))
model("gpt_neox")(lambda: neox(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)))
model("gpt_neox_sequential", files="old_neox")(lambda: neox(use_parallel_residual=False, attention_bias=False, hidden_act="gelu_fast"))
model("gpt_neox_odd")(lambda: neox(hidden_size=20, tie_word_embeddings=True,
                                   rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5)))

EXPERTS = dict(hidden_size=16, num_key_value_heads=2, intermediate_size=12, num_experts_per_tok=2)
model("mixtral")(lambda: T.MixtralForCausalLM(T.MixtralConfig(**llama_sizes(**EXPERTS, num_local_experts=4, sliding_window=9))))
model("qwen3_moe", files="published")(lambda: T.Qwen3MoeForCausalLM(T.Qwen3MoeConfig(**llama_sizes(
    **{**EXPERTS, "num_experts_per_tok": 3}, head_dim=6, num_experts=5, moe_intermediate_size=8, norm_topk_prob=True, num_hidden_layers=3, mlp_only_layers=[1]))))
model("qwen2_moe")(lambda: T.Qwen2MoeForCausalLM(T.Qwen2MoeConfig(**llama_sizes(
    **EXPERTS, num_experts=4, moe_intermediate_size=8, shared_expert_intermediate_size=10))))


ENCODERS = {}


def encoder(name, length=11, files="safetensors", grads=True):
    def keep(make):
        ENCODERS[name] = (make, files, length, grads)
        return make
    return keep


def bert_sizes(**more):
    sizes = dict(vocab_size=VOCAB, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
                 max_position_embeddings=16, pad_token_id=0)
    return {**sizes, **more}


def labels(n):
    return dict(id2label={i: f"l{i}" for i in range(n)}, label2id={f"l{i}": i for i in range(n)})


def distil(**more):
    return T.DistilBertConfig(vocab_size=VOCAB, dim=12, n_layers=2, n_heads=3, hidden_dim=20, max_position_embeddings=16, **more)


encoder("bert")(lambda: T.BertModel(T.BertConfig(**bert_sizes())))
encoder("bert_masked", files="gamma")(lambda: T.BertForMaskedLM(T.BertConfig(**bert_sizes(hidden_act="gelu_new", layer_norm_eps=1e-3))))
encoder("bert_sequence")(lambda: T.BertForSequenceClassification(T.BertConfig(**bert_sizes(), **labels(3))))
encoder("bert_token", files="bin")(lambda: T.BertForTokenClassification(T.BertConfig(**bert_sizes(), **labels(4))))
encoder("distilbert_masked")(lambda: T.DistilBertForMaskedLM(distil()))
encoder("distilbert_sequence")(lambda: T.DistilBertForSequenceClassification(distil(**labels(3))))
encoder("roberta_masked")(lambda: T.RobertaForMaskedLM(T.RobertaConfig(**bert_sizes(pad_token_id=1, type_vocab_size=1))))
encoder("roberta_sequence")(lambda: T.RobertaForSequenceClassification(T.RobertaConfig(**bert_sizes(pad_token_id=1, type_vocab_size=1), **labels(3))))
encoder("big_bird", length=38, grads=False)(lambda: T.BigBirdModel(T.BigBirdConfig(
    **bert_sizes(max_position_embeddings=44, block_size=4, num_random_blocks=1, use_bias=False, rescale_embeddings=True))))
encoder("big_bird_sequence")(lambda: T.BigBirdForSequenceClassification(T.BigBirdConfig(
    **bert_sizes(block_size=4, num_random_blocks=1), **labels(3))))

# Decoders that classify by the last token.
encoder("gpt2_sequence")(lambda: T.GPT2ForSequenceClassification(T.GPT2Config(
    vocab_size=VOCAB, n_positions=16, n_embd=12, n_layer=2, n_head=3, pad_token_id=0, bos_token_id=1, eos_token_id=1, **labels(3))))
encoder("llama_sequence")(lambda: T.LlamaForSequenceClassification(T.LlamaConfig(**llama_sizes(pad_token_id=0, eos_token_id=1), **labels(3))))
encoder("opt_sequence")(lambda: T.OPTForSequenceClassification(T.OPTConfig(
    vocab_size=VOCAB, hidden_size=12, num_hidden_layers=2, ffn_dim=20, num_attention_heads=3, max_position_embeddings=16,
    do_layer_norm_before=False, word_embed_proj_dim=10, dropout=0.1, pad_token_id=1, bos_token_id=0, eos_token_id=0, **labels(3))))


ROPES = {  # of real models, with the longest sequence that is asked for
    "llama3": (dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                    original_max_position_embeddings=8192), 131072, 20000),
    "yarn": (dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0, original_max_position_embeddings=32768), 131072, 20000),
    "yarn_mscale": (dict(rope_type="yarn", rope_theta=10000.0, factor=40.0, original_max_position_embeddings=4096, mscale=0.707,
                         mscale_all_dim=1.0, beta_fast=16, truncate=False), 163840, 20000),
    "dynamic": (dict(rope_type="dynamic", rope_theta=10000.0, factor=3.0), 4096, 20000),
    "linear": (dict(rope_type="linear", rope_theta=10000.0, factor=8.0), 32768, 20000),
}


def write_ropes():
    out = {}
    for name, (parameters, positions, length) in ROPES.items():
        config = T.LlamaConfig(hidden_size=256, num_attention_heads=2, head_dim=128, max_position_embeddings=positions, rope_parameters=parameters)
        rope = T.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        cos, sin = rope(torch.zeros(1), torch.tensor([[length - 1]]))
        out |= {f"{name}.inv_freq": rope.inv_freq.clone(), f"{name}.cos": cos[0, 0, :64].clone(), f"{name}.sin": sin[0, 0, :64].clone()}
    save_file(out, HERE.parent / "language_ropes.safetensors")


def change_config(folder, f):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    f(config)
    path.write_text(json.dumps(config, indent=2) + "\n")


def write_bin(folder, shards):
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.h.0.attn.bias" if "transformer.wte.weight" in tensors else "model.layers.0.self_attn.rotary_emb.inv_freq"] = \
        torch.ones(2)
    if "bert.embeddings.word_embeddings.weight" in tensors:
        tensors["bert.embeddings.position_ids"] = torch.arange(16).unsqueeze(0)
        del tensors["model.layers.0.self_attn.rotary_emb.inv_freq"]
    (folder / "model.safetensors").unlink()
    if shards == 1:
        return torch.save(tensors, folder / "pytorch_model.bin")
    names = sorted(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"pytorch_model_{i + 1:05}-of-{shards:05}.bin"
        part = {name: tensors[name] for name in names[i::shards]}
        torch.save(part, folder / file)
        weight_map |= {name: file for name in part}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}, indent=1))


def rename(folder, f):
    tensors = load_file(folder / "model.safetensors")
    save_file({f(name): value for name, value in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def old_rope(config):
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    config["torch_dtype"] = config.pop("dtype")


def old_neox(config):
    rope = config.pop("rope_parameters")
    config |= {"rotary_emb_base": rope["rope_theta"], "rotary_pct": rope["partial_rotary_factor"]}
    config.pop("use_cache")


def published(config):  # the key of configs before transformers 5
    config["num_experts"] = config.pop("num_local_experts")


def save(net, folder, files):
    net.save_pretrained(folder, max_shard_size="6KB" if files == "sharded" else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    if files == "bin":
        write_bin(folder, 1)
    elif files == "sharded_bin":
        write_bin(folder, 2)
    elif files == "bare":
        prefix = net.base_model_prefix + "."
        rename(folder, lambda name: name.removeprefix(prefix))
    elif files == "gamma":
        rename(folder, lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"))
    elif files == "old_norm":
        rename(folder, lambda name: name.replace("decoder.final_layer_norm", "decoder.layer_norm"))
    elif files == "old":
        change_config(folder, old_rope)
    elif files == "published":
        change_config(folder, published)
    elif files == "old_neox":
        change_config(folder, old_neox)


def projected(grad):
    """A matrix by columns of fixed weights, so that files stay small."""
    return grad if grad.dim() < 2 else grad @ torch.cos(torch.arange(grad.shape[1], dtype=grad.dtype))


def gradients(net):
    """By the names of files: experts one by one."""
    for key, p in net.named_parameters():
        if ".experts." not in key:
            yield key.replace(".mlp.gate.", ".block_sparse_moe.gate.") if net.config.model_type == "mixtral" else key, p.grad
            continue
        body = key[:key.rindex(".experts.")]
        mixtral = net.config.model_type == "mixtral"
        body = body.replace(".mlp", ".block_sparse_moe") if mixtral else body
        for i, grad in enumerate(p.grad):
            parts = [("w2" if mixtral else "down_proj", grad)] if key.endswith("down_proj") else \
                zip(("w1", "w3") if mixtral else ("gate_proj", "up_proj"), grad.chunk(2))
            for name, part in parts:
                yield f"{body}.experts.{i}.{name}.weight", part


def made(name, make, files):
    torch.manual_seed(sum(name.encode()))
    net = make().eval()
    with torch.no_grad():
        for p in net.parameters():  # away from zeros and ones, which would hide mistakes
            p.add_(torch.randn_like(p) * 0.3)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save(net, folder, files)
    return net, folder


def write_encoder(name):
    make, files, length, grads = ENCODERS[name]
    net, folder = made(name, make, files)
    pad = net.config.pad_token_id
    ids = torch.randint(2, VOCAB, (2, length))
    mask = torch.ones_like(ids)
    ids[1, -3:], mask[1, -3:] = pad, 0
    inputs = dict(input_ids=ids, attention_mask=mask)
    out = dict(ids=ids, mask=mask)
    if getattr(net.config, "type_vocab_size", 1) > 1:
        out["types"] = inputs["token_type_ids"] = (torch.arange(length) > 4).long().expand(2, length).contiguous()
    result = net(**inputs, output_hidden_states=True)
    out["hidden"] = result.hidden_states[-1] if "last_hidden_state" not in result else result.last_hidden_state
    head = result.logits if "logits" in result else result.pooler_output
    out["head"] = head
    if grads:
        real = mask.unsqueeze(2) if head.dim() == 3 else 1
        (head * real * torch.cos(torch.arange(head.numel())).view_as(head)).sum().backward()
        for key, p in net.named_parameters():
            if p.grad is not None:
                out["grad." + key] = projected(p.grad)
    save_file({key: value.detach().contiguous() for key, value in out.items()}, folder / "outputs.st")


def write_balance(net, folder, ids):
    """The loss of routers, for all tokens and for those of a mask, with gradients of the former."""
    mask = torch.ones_like(ids)
    mask[1, -4:] = 0
    net.zero_grad()
    loss = net(ids, labels=ids, output_router_logits=True).aux_loss
    loss.backward()
    out = {"ids": ids, "mask": mask, "loss": loss.detach().reshape(1),
           "masked": net(ids, attention_mask=mask, labels=ids, output_router_logits=True).aux_loss.detach().reshape(1)}
    for key, p in net.named_parameters():
        if key.endswith("mlp.gate.weight"):
            out["grad." + key.split(".")[2]] = p.grad
    out["tokens"] = net.generate(ids[:, :5], max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    save_file({key: value.contiguous() for key, value in out.items()}, folder / "balance.st")


def write(name):
    make, files, length = MODELS[name]
    net, folder = made(name, make, files)
    ids = torch.randint(2, VOCAB, (2, length))
    logits = net(ids).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    out = {"ids": ids, "logits": logits.detach(), "loss": loss.detach().reshape(1)}
    for key, grad in gradients(net):
        out["grad." + key] = projected(grad)
    if files != "old_norm":  # which transformers itself no longer reads
        again = T.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        assert torch.equal(again(ids).logits, logits), name
    save_file({key: value.contiguous() for key, value in out.items()}, folder / "outputs.st")
    if hasattr(net.config, "router_aux_loss_coef"):
        write_balance(net, folder, ids)


if __name__ == "__main__":
    T.logging.set_verbosity_error()
    write_ropes()
    for each in sys.argv[1:] or [*MODELS, *ENCODERS]:
        write(each) if each in MODELS else write_encoder(each)
        print(each, sum(f.stat().st_size for f in (HERE / each).iterdir()) // 1000, "kB")
