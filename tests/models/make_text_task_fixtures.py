"""Writes what text_recipes_test.cpp trains: tiny models of transformers with tokenizers, texts, and the losses of 100 steps there. Run:
python tests/models/make_text_task_fixtures.py
With MODEL folders as arguments it loads what the recipes saved instead, as transformers and PEFT do.
"""
import csv
import json
import pathlib
import random
import shutil
import sys

import torch
import transformers as T
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent / "fixtures" / "text_tasks"
THINGS, ENDS = "film story cast plot ending music".split(), [".", " from start to end .", " , we thought .", " again and again ."]
ADJECTIVES = {"negative": "dull weak boring awful".split(), "positive": "great funny moving lovely".split()}
CHAT = ("{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
STEPS, BATCH = 100, 4


def reviews(count):
    draw = random.Random(1)
    for _ in range(count):
        kind = draw.choice(list(ADJECTIVES))
        words = [draw.choice(THINGS), draw.choice(ADJECTIVES[kind]), draw.choice(THINGS), draw.choice(ADJECTIVES[kind]), draw.choice(ENDS)]
        yield "the {} was {} and the {} was {}{}".format(*words), kind


def questions(count):
    draw = random.Random(2)
    for _ in range(count):
        thing, kind = draw.choice(THINGS), draw.choice(list(ADJECTIVES))
        word = draw.choice(ADJECTIVES[kind])
        yield f"the {thing} was {word} . how was the {thing} ?", f" it was {word} , so {kind} ."


def word_piece(texts):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=96, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece()
    return T.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
                                     mask_token="[MASK]", model_max_length=32)


def byte_pairs(texts):
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=110, special_tokens=special, initial_alphabet=[]))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.decoder = decoders.ByteLevel()
    return T.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", chat_template=CHAT,
                                     model_max_length=64)


def fresh(name):
    shutil.rmtree(HERE / name, ignore_errors=True)
    (HERE / name).mkdir(parents=True)
    return HERE / name


def train(loss_of, parameters, count, lr):
    """Losses of the steps; rows come in the order of the file, each epoch anew."""
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01)
    losses = []
    while len(losses) < STEPS:
        for begin in range(0, count, BATCH):
            loss = loss_of(range(begin, min(begin + BATCH, count)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(round(loss.item(), 7))
            if len(losses) == STEPS:
                break
    return losses


def write_classification():
    texts, labels = zip(*reviews(40))
    with open(HERE / "reviews.csv", "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("text", "label"), *zip(texts, labels)])
    folder, tokenizer = fresh("distilbert"), word_piece(texts)
    torch.manual_seed(3)
    names = sorted(ADJECTIVES)
    net = T.DistilBertForSequenceClassification(T.DistilBertConfig(
        vocab_size=len(tokenizer), dim=24, n_layers=2, n_heads=3, hidden_dim=40, max_position_embeddings=32, dropout=0.0, attention_dropout=0.0,
        seq_classif_dropout=0.0, id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)}))
    net.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    net.train()

    def loss_of(rows):
        batch = tokenizer([texts[i] for i in rows], padding=True, truncation=True, max_length=16, return_tensors="pt", return_token_type_ids=False)
        return net(**batch, labels=torch.tensor([names.index(labels[i]) for i in rows])).loss

    return train(loss_of, net.parameters(), len(texts), 1e-3)


def write_adapters():
    pairs = list(questions(30))
    (HERE / "questions.jsonl").write_text("".join(json.dumps({"prompt": a, "completion": b}) + "\n" for a, b in pairs))
    (HERE / "chats.jsonl").write_text("".join(json.dumps({"messages": [
        {"role": "user", "content": a}, {"role": "assistant", "content": b}, {"role": "user", "content": "why ?"},
        {"role": "assistant", "content": "so"}]}) + "\n" for a, b in pairs[:12]))
    folder, tokenizer = fresh("llama"), byte_pairs([a + b for a, b in pairs] + ["why ? so"])
    torch.manual_seed(4)
    net = T.LlamaForCausalLM(T.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    net.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    net = get_peft_model(net, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    adapter = fresh("llama_adapter")
    net.save_pretrained(adapter)
    (adapter / "README.md").unlink()
    config = json.loads((adapter / "adapter_config.json").read_text()) | {"base_model_name_or_path": "llama"}
    (adapter / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    net.train()

    def row(prompt, completion):
        whole = tokenizer(prompt + completion).input_ids + [tokenizer.eos_token_id]
        before = len(tokenizer(prompt).input_ids)
        return whole, [-100] * before + whole[before:]

    def loss_of(rows):
        made = [row(*pairs[i]) for i in rows]
        longest = max(len(ids) for ids, _ in made)
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in made])
        labels = torch.tensor([targets + [-100] * (longest - len(targets)) for _, targets in made])
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in made])
        return net(input_ids=ids, attention_mask=mask, labels=labels).loss

    return train(loss_of, [p for p in net.parameters() if p.requires_grad], len(pairs), 1e-2)


def check(folder):
    """What a recipe saved, as a user of transformers opens it."""
    if (folder / "adapter_config.json").exists():
        net = PeftModel.from_pretrained(T.AutoModelForCausalLM.from_pretrained(HERE / "llama"), folder)
        return print("adapter", round(net(torch.arange(6).unsqueeze(0)).logits.abs().sum().item(), 4))
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    tokenizer = T.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("the film was great", return_tensors="pt", return_token_type_ids=False)
    net, info = getattr(T, name).from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    logits = net.eval()(**ids).logits
    print(name, net.config.id2label[int(logits.flatten().argmax())] if logits.dim() == 2 else list(logits.shape))


if __name__ == "__main__":
    T.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if sys.argv[1:]:
        for each in sys.argv[1:]:
            check(pathlib.Path(each))
    else:
        HERE.mkdir(parents=True, exist_ok=True)
        curves = {"distilbert": write_classification(), "llama_adapter": write_adapters()}
        (HERE / "curves.json").write_text(json.dumps(curves) + "\n")
        print({name: (losses[0], losses[-1]) for name, losses in curves.items()})
