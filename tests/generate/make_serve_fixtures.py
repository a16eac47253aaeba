#!/usr/bin/env python3
"""Writes fixtures/chat: a Llama with random weights, a tokenizer of bytes and a chat template, for the tests of `levin serve`.

usage: make_serve_fixtures.py
"""
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).parent / "fixtures/chat"
SPECIAL = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
TEMPLATE = ("{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")


def main():
    torch.manual_seed(7)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    FOLDER.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    end = tokenizer.token_to_id("<|end|>")
    (FOLDER / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}, indent=1) + "\n")
    config = LlamaConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, bos_token_id=None, eos_token_id=end,
                         tie_word_embeddings=True, initializer_range=0.4)
    model = LlamaForCausalLM(config)
    model.save_pretrained(FOLDER)


if __name__ == "__main__":
    main()
