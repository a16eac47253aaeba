#!/usr/bin/env python3
"""Fine-tunes a DistilBERT of distilbert-base's sizes (random weights, dropout 0) to classify texts, with `levin fit text_classification`
and with transformers: the same weights, the same texts in the same order, AdamW, float32. Then the same with LoRA, beside PEFT: the base is
frozen, adapters and head learn. Prints the losses of both and their largest difference; one above 1e-4 is an error.

usage: bench/distilbert_curve.py [--levin build/bin/levin] [--steps 100] [--batch 4] [--length 64] [--case whole|lora] [--json FILE]
Needs torch, transformers and peft. 100 steps take a few minutes on two cores.
"""
import argparse
import csv
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers as T
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

ROOT = Path(__file__).resolve().parent.parent
LABELS = ["negative", "positive"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = 30522
ALLOWED = 1e-4
RATES = {"whole": 5e-5, "lora": 1e-3}


def vocabulary():
    """As many entries as distilbert-base has: letters, their continuations, and words of syllables."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]
    words = SPECIAL + list(letters) + ["##" + a for a in letters] + ["##" + s for s in syllables] + list(".,!?") + syllables
    words += (a + b for a, b in itertools.product(syllables, repeat=2))
    words += (a + b + c for a, b, c in itertools.product(syllables, repeat=3))
    return dict(zip(itertools.islice(words, WORDS), range(WORDS)))


def tokenizer_of(vocab, length):
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.decoder = decoders.WordPiece()
    return T.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
                                     mask_token="[MASK]", model_max_length=length)


def texts_of(vocab, count, length):
    """Some shorter and some longer than a row. Of 400 words each class has 100 that the other does not use."""
    draw = random.Random(1)
    words = draw.sample([word for word in vocab if len(word) > 3 and word.isalpha()], 400)
    own = {LABELS[0]: words[:300], LABELS[1]: words[100:]}
    for _ in range(count):
        label = draw.choice(LABELS)
        yield " ".join(draw.choices(own[label], k=draw.randint(length // 4, length))) + draw.choice(" .!?"), label


def make(folder, args):
    """The model folder, the texts and the adapter that both sides begin from."""
    vocab = vocabulary()
    assert len(vocab) == WORDS
    tokenizer = tokenizer_of(vocab, 512)
    rows = list(texts_of(vocab, args.steps * args.batch, args.length))
    with open(folder / "texts.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    torch.manual_seed(3)
    net = T.DistilBertForSequenceClassification(T.DistilBertConfig(
        vocab_size=WORDS, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, id2label=dict(enumerate(LABELS)),
        label2id={name: i for i, name in enumerate(LABELS)}))
    net.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    net = adapted(net)
    net.save_pretrained(folder / "adapter")
    return tokenizer, rows


def adapted(net):
    torch.manual_seed(4)
    return get_peft_model(net, LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["q_lin", "v_lin"],
                                          modules_to_save=["pre_classifier", "classifier"]))


def of_transformers(folder, case, tokenizer, rows, args):
    net = T.DistilBertForSequenceClassification.from_pretrained(folder / "model")
    if case == "lora":
        net = adapted(net)
    net.train()
    learned = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=RATES[case], weight_decay=0.01)
    losses = []
    for begin in range(0, len(rows), args.batch):
        part = rows[begin:begin + args.batch]
        batch = tokenizer([text for text, _ in part], padding=True, truncation=True, max_length=args.length, return_tensors="pt",
                          return_token_type_ids=False)
        loss = net(**batch, labels=torch.tensor([LABELS.index(label) for _, label in part])).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, sum(p.numel() for p in learned)


def of_levin(folder, case, args):
    flags = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={folder / case}",
             f"--trainer.max_steps={args.steps}", "--trainer.gradient_clip_val=null", "--trainer.log_every_n_steps=1",
             "--trainer.enable_checkpointing=false", f"--model.folder={folder / 'model'}", "--model.save=none",
             f"--data.train={folder / 'texts.csv'}", "--data.order=sequential", "--data.val_fraction=0", f"--data.batch_size={args.batch}",
             f"--data.max_length={args.length}", f"--optimizer.lr={RATES[case]}", "--optimizer.weight_decay=0.01", "--lr_scheduler=null"]
    if case == "lora":
        flags.append(f"--model.lora.adapter={folder / 'adapter'}")
    done = subprocess.run([args.levin, "fit", "text_classification", *flags], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"distilbert_curve: levin failed: {done.stderr[-2000:]}")
    metrics = next((folder / case).rglob("metrics.csv"))
    return [float(row["train_loss"]) for row in csv.DictReader(metrics.open(newline="")) if row["train_loss"]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--levin", default=str(ROOT / "build/bin/levin"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--case", choices=list(RATES))
    parser.add_argument("--json", type=Path, help="write the losses there")
    args = parser.parse_args()
    T.logging.set_verbosity_error()
    T.logging.disable_progress_bar()
    curves, far = {}, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer, rows = make(folder, args)
        for case in [args.case] if args.case else RATES:
            begin = time.time()
            levin = of_levin(folder, case, args)
            middle = time.time()
            peer, learned = of_transformers(folder, case, tokenizer, rows, args)
            end = time.time()
            if len(levin) != len(peer):
                sys.exit(f"distilbert_curve: {len(levin)} losses of Levin, {len(peer)} of transformers")
            apart = [abs(a - b) for a, b in zip(levin, peer)]
            curves[case] = {"levin": levin, "transformers": peer}
            print(f"{case}: {learned / 1e6:.2f}M parameters learn, {len(peer)} steps of {args.batch} x {args.length}")
            for step in sorted({*range(0, len(peer), max(1, len(peer) // 10)), len(peer) - 1}):
                print(f"  step {step:>4}  levin {levin[step]:.6f}  transformers {peer[step]:.6f}  apart {apart[step]:.1e}")
            print(f"{case}: largest difference {max(apart):.2e} at step {apart.index(max(apart))}; levin {middle - begin:.0f} s, "
                  f"transformers {end - middle:.0f} s", flush=True)
            if max(apart) > ALLOWED:
                far.append(case)
    if args.json:
        args.json.write_text(json.dumps(curves) + "\n")
    if far:
        sys.exit(f"distilbert_curve: more than {ALLOWED} apart: {', '.join(far)}")


if __name__ == "__main__":
    main()
