#!/usr/bin/env python3
"""Writes tests/text/fixtures/folder_*: folders without a tokenizer.json, and what transformers makes of them.

    pip install tokenizers transformers sentencepiece protobuf
    tests/text/make_folder_fixtures.py
"""
import io
import json
from pathlib import Path

import sentencepiece
from transformers import BertTokenizer, GPT2Tokenizer, LlamaTokenizer, Qwen2Tokenizer, RobertaTokenizer, T5Tokenizer, XLMRobertaTokenizer

from make_fixtures import CORPUS, HERE, SPECIAL_TEXTS, TEXTS, case, write_cases


def folder_of(name, config, **files):
    folder = HERE / f"folder_{name}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    for file, content in files.items():
        path = folder / file.replace("__", ".")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content)
    return folder


def write(folder, kind):
    tokenizer = kind.from_pretrained(folder)
    backend = tokenizer._tokenizer
    texts = TEXTS[:60:2] + TEXTS[60::5] + SPECIAL_TEXTS
    cases = [case(backend, text) for text in texts] + [case(backend, "first", pair="second one")]
    write_cases(folder, cases)


def sentence_piece(name, **options):
    path = HERE / f"folder_{name}" / "tokenizer.model"
    if path.exists():
        return path.read_bytes()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS.splitlines()), model_writer=model, hard_vocab_limit=False, minloglevel=2, **options)
    return model.getvalue()


def main():
    source = json.loads((HERE / "roberta" / "tokenizer.json").read_text())["model"]
    vocab = json.dumps(source["vocab"], ensure_ascii=False, separators=(",", ":")) + "\n"
    merges = "#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in source["merges"])
    gpt2 = json.loads((HERE / "gpt2" / "tokenizer.json").read_text())["model"]
    gpt2_vocab = json.dumps(gpt2["vocab"], ensure_ascii=False, separators=(",", ":")) + "\n"
    gpt2_merges = "#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in gpt2["merges"])
    write(folder_of("gpt2", {"tokenizer_class": "GPT2Tokenizer"}, vocab__json=gpt2_vocab, merges__txt=gpt2_merges), GPT2Tokenizer)
    opt = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    write(folder_of("opt", opt, vocab__json=vocab, merges__txt=merges), GPT2Tokenizer)
    mask = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    write(folder_of("roberta", {"tokenizer_class": "RobertaTokenizer", "mask_token": mask}, vocab__json=vocab, merges__txt=merges), RobertaTokenizer)
    write(folder_of("qwen2", {"tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": ["<|im_start|>", "<s>"]}, vocab__json=gpt2_vocab, merges__txt=gpt2_merges), Qwen2Tokenizer)
    bert = json.loads((HERE / "bert" / "tokenizer.json").read_text())["model"]["vocab"]
    words = "".join(word + "\n" for word in sorted(bert, key=bert.get))
    write(folder_of("bert", {"tokenizer_class": "BertTokenizer"}, vocab__txt=words), BertTokenizer)
    write(folder_of("bert_cased", {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "tokenize_chinese_chars": False}, vocab__txt=words), BertTokenizer)
    bpe = sentence_piece("llama", vocab_size=560, model_type="bpe", byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity",
                         add_dummy_prefix=True, remove_extra_whitespaces=False, user_defined_symbols=["<tool>"])
    write(folder_of("llama", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
                    tokenizer__model=bpe), LlamaTokenizer)
    t5 = sentence_piece("t5", vocab_size=420, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, character_coverage=0.98)
    write(folder_of("t5", {"tokenizer_class": "T5Tokenizer"}, tokenizer__model=t5), T5Tokenizer)
    xlm = sentence_piece("xlm_roberta", vocab_size=420, model_type="unigram", unk_id=0, bos_id=1, eos_id=2, character_coverage=0.98)
    write(folder_of("xlm_roberta", {"tokenizer_class": "XLMRobertaTokenizer"}, tokenizer__model=xlm), XLMRobertaTokenizer)


if __name__ == "__main__":
    main()
