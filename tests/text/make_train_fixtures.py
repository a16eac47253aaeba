#!/usr/bin/env python3
"""Writes tests/text/fixtures/train: a text, and the vocabulary and merges that the Python package's BpeTrainer learns of it.

    pip install tokenizers
    tests/text/make_train_fixtures.py
"""
import json

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from make_fixtures import CORPUS, HERE, LLAMA3


def main():
    folder = HERE / "train"
    folder.mkdir(parents=True, exist_ok=True)
    text = CORPUS[: len(CORPUS) // 3] + "aaa aaaa aaaaa abab ababab bcbc abc abc abcabc low lower lowest newer newest wider widest\n" * 3 + "no newline at the end"
    (folder / "corpus.txt").write_text(text)
    learned = {}
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    for name, size, frequency, pre in (("plain", 420, 0, pre_tokenizers.ByteLevel(add_prefix_space=False)), ("all", 3000, 0, pre_tokenizers.ByteLevel(add_prefix_space=False)),
                                       ("frequent", 3000, 4, pre_tokenizers.ByteLevel(add_prefix_space=True)), ("llama3", 500, 0, split)):
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre
        trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=frequency, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
        t.train([str(folder / "corpus.txt")], trainer)
        model = json.loads(t.to_str())["model"]
        learned[name] = {"vocab_size": size, "min_frequency": frequency, "tokens": sorted(model["vocab"], key=model["vocab"].get)[257:], "merges": model["merges"]}
    (folder / "learned.json").write_text("{" + ",\n".join(f'"{k}": {json.dumps(v, ensure_ascii=False)}' for k, v in learned.items()) + "}\n")


if __name__ == "__main__":
    main()
