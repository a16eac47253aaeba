#!/usr/bin/env python3
"""Writes tests/text/fixtures: small tokenizers of every kind, and what the Python packages make of difficult texts.

    pip install tokenizers transformers sentencepiece protobuf
    tests/text/make_fixtures.py [NAME...]

Training of WordPiece and Unigram is not repeatable, so existing tokenizers are kept; delete one to make it anew.
"""
import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent / "fixtures"

CORPUS = """The quick brown fox jumps over the lazy dog. The dog was not amused; it's been a long day, and they'll all be tired by now.
Numbers: 1 12 123 1234 12345 3.14159 1,000,000 and dates 2024-01-31. I've said we're done, haven't I? You'd think she'd know.
def main(argc, argv):\n    if argc > 1:\n        return argv[1]\n    print("hello world")  # comment\n
Größe, naïve café, façade, coöperate, São Paulo, Ålesund, İstanbul, Ελλάδα, Привет мир, как дела? שלום עולם مرحبا بالعالم
你好，世界。这是一个测试。日本語のテキストです。ひらがなカタカナ 한국어 텍스트입니다 नमस्ते दुनिया สวัสดีชาวโลก
😀 emoji 👩‍👩‍👧‍👦 family 🇩🇪 flag ½ ¾ ² ﬁ ligature Ⅷ roman … ellipsis — dash “quotes” ‘single’ © ® ™ €100 $5 £3
tokenization tokenizer tokenizers tokens token unbelievable unhappiness understanding internationalization
""" * 3

SPACES = [" " * n for n in (0, 1, 2, 3, 5, 8, 17, 24, 40)]
TEXTS = [
    "", "a", " ", "\n", "\t", "Hello, world!", " Hello", "Hello ", "  Hello  world  ", "hello\nworld\n", "\r\n\r\n", "a\r\n\r\nb", "a\t\tb \t c",
    "it's they'll I've we're you'd I'm don't", "IT'S THEY'LL I'VE WE'RE YOU'D I'M", "'s 't 're 've 'm 'll 'd ' 'x", "it'ſ",
    "1234567890 12 1 3.14 1,000", "١٢٣ ४५६ Ⅷ ½ ²", "def f(x):\n    return x  # done\n\n\n    y = 1",
    "Größe naïve café e\u0301 a\u0308\u0323 \u0323\u0308a ÅÅ\u212b", "İstanbul ΑΣ ΣΑΣ ß ẞ ﬁ ﬀ K ſ", "你好，世界。这是测试", "日本語ひらがなカタカナー", "한국어 텍스트 각 각",
    "नमस्ते क्षि দুনিয়া", "สวัสดีชาวโลก ก็", "שָׁלוֹם مَرْحَبًا", "😀 😃😄 👩‍👩‍👧‍👦 🇩🇪🇫🇷 👍🏽 e\u20dd", "a\u00a0b\u3000c\u2003d\u200be\u2028f\u0085g\ufefff",
    "\u0000\u0001\u0008\u000b\u001f\u007f\u0080\u009f\ufffd\ufffe", "supercalifragilisticexpialidocious internationalization", "a" * 120, "zz" + "ab" * 60,
    "x" * 101 + " y", "¿Qué? ¡No! «guillemets» “q” ‘s’ – — … · •", "a.b,c;d:e!f?g(h)i[j]k{l}m<n>o/p\\q|r_s-t+u=v*w&x^y%z$#@~`",
    "www.example.com/path?x=1&y=2#frag user@mail.org", "\U0001d54f\U0001d552 \U00020000 \U0010ffff \ue000", "▁a ▁ _ a▁b", "Ġa Ċ", "don't stop . now , ok ? n't",
    "The quick brown fox jumps over the lazy dog.", "mixedCASE wordsLike camelCase HTTPServer", "ñ n\u0303 Ṩ S\u0323\u0307 ệ", "\u1100\u1161\u11a8 가\u11a8 힣",
    "।नमस्ते۔ مرحبا، 。，、…", "Well.\nNext, then,  double", "tab\tnew\nline\rret", "100% of $5.00 = €4,50", "~~ ### ``` ---- ====",
] + ["a" + s + "b" for s in SPACES] + [s + "word" for s in SPACES] + ["word" + s for s in SPACES]
SPECIAL_TEXTS = [
    "<s>hello</s>", "hello <mask> there", "hello<mask>there", "a  <l>  b", "a  <r>  b", "a  <lr>  b", "<r>  <l>", "<w> a<w> <w>b <w>_ é<w> -<w>- <w>", "<NRM> <nrm> <Nrm> x<nrm>y",
    "<s><s><s>", "<s", "s>", "<ss>", "<s>s>", "<s>x<s>xy<s>xyz", "[CLS] [SEP] [MASK] [UNK] [PAD]", " <s> ", "\n<l>\n", "<mask>", "<mask", "a<mask>\u3000b", "<|endoftext|>hi<|endoftext|>",
]


def added():
    return [AddedToken("<l>", lstrip=True, normalized=False, special=True), AddedToken("<r>", rstrip=True, normalized=False, special=True),
            AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False), AddedToken("<w>", single_word=True, normalized=False),
            AddedToken("<NRM>", normalized=True), AddedToken("<ss>", normalized=False), AddedToken("<s>xy", normalized=False)]


def case(tokenizer, text, special=True, pair=None):
    e = tokenizer.encode(text, pair, add_special_tokens=special)
    out = {"text": text}
    if pair is not None:
        out["pair"] = pair
    if not special:
        out["special"] = False
    out.update(ids=e.ids, tokens=e.tokens, offsets=e.offsets, decoded=tokenizer.decode(e.ids), decoded_all=tokenizer.decode(e.ids, skip_special_tokens=False))
    if special:
        out.update(mask=e.special_tokens_mask, types=e.type_ids)
    return out


def write(name, tokenizer, texts=None):
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    cases = [case(tokenizer, text) for text in (texts or TEXTS + SPECIAL_TEXTS)]
    cases += [case(tokenizer, text, False) for text in ("Hello, world!", "<s>a b</s>")]
    if not texts:
        cases += [case(tokenizer, "first text", pair="and the second")]
    write_cases(folder, cases)


def write_cases(folder, cases):
    lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases)
    (folder / "cases.json").write_text('{"cases": [\n' + lines + "\n]}\n")


def saved(name, make):
    """The tokenizer of a fixture: as it was saved, or made."""
    path = HERE / name / "tokenizer.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        make().save(str(path))
        value = json.loads(path.read_text())
        path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    return Tokenizer.from_file(str(path))


def trained(model, trainer, pre_tokenizer, normalizer=None):
    t = Tokenizer(model)
    t.pre_tokenizer = pre_tokenizer
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    return t


def byte_level(special=(), size=450, pre=None, normalizer=None, **options):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t = trained(models.BPE(**options), trainer, pre or pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer)
    t.decoder = decoders.ByteLevel()
    return t


def gpt2():
    t = byte_level(["<|endoftext|>"])
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    return t


def roberta():
    t = byte_level(["<s>", "<pad>", "</s>", "<unk>"], pre=pre_tokenizers.ByteLevel(add_prefix_space=True))
    t.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=True)
    return t


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def split_then_bytes(pattern, **more):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return byte_level(["<|begin|>"], pre=pre, **more)


def llama3():
    t = split_then_bytes(LLAMA3, ignore_merges=True)
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|>:1 $B:1", special_tokens=[("<|begin|>", 0)])])
    return t


def matrix():
    """Added tokens of all kinds over a normalizer."""
    t = byte_level(["<s>", "</s>", "<mask>"], normalizer=normalizers.Lowercase())
    t.add_tokens(added())
    return t


def llama2():
    trainer = trainers.BpeTrainer(vocab_size=520, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)], limit_alphabet=70, show_progress=False)
    t = trained(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True), trainer, pre_tokenizers.Metaspace("▁", "always", True))
    value = json.loads(t.to_str())
    value["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    value["pre_tokenizer"] = None
    value["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                                        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    value["added_tokens"] = [a for a in value["added_tokens"] if not a["content"].startswith("<0x")]
    t = Tokenizer.from_str(json.dumps(value))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return t


def bert():
    t = trained(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False),
                pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    t.decoder = decoders.WordPiece()
    return t


def bert_cased():
    t = saved("bert", bert)
    value = json.loads(t.to_str())
    value["normalizer"].update(lowercase=False, strip_accents=None, clean_text=True)
    value["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    value["decoder"]["cleanup"] = False
    return Tokenizer.from_str(json.dumps(value))


def unigram(**options):
    t = trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=400, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False),
                pre_tokenizers.Metaspace(), normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]))
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    t.decoder = decoders.Metaspace()
    return t


def unigram_bytes():
    value = json.loads(saved("unigram", unigram).to_str())
    value["model"]["byte_fallback"] = True
    value["model"]["vocab"] += [[f"<0x{b:02X}>", -20.0] for b in range(256)]
    value["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    value["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    value["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}]}
    return Tokenizer.from_str(json.dumps(value))


def word_level():
    t = trained(models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(vocab_size=120, special_tokens=["<unk>", "<s>"], show_progress=False),
                pre_tokenizers.Whitespace(), normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]))
    return t


def suffix_bpe():
    """As the first GPT and CLIP: a suffix ends words, and unknown characters are not fused."""
    t = trained(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", continuing_subword_prefix="@@"),
                trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], end_of_word_suffix="</w>", continuing_subword_prefix="@@", limit_alphabet=50, show_progress=False),
                pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(True)]), normalizers.NFC())
    t.decoder = decoders.BPEDecoder()
    return t


def dropped():
    """No unk_token: what is not known is left out."""
    value = json.loads(saved("suffix_bpe", suffix_bpe).to_str())
    value["model"].update(unk_token=None)
    value["pre_tokenizer"] = {"type": "UnicodeScripts"}
    value["decoder"] = {"type": "CTC", "pad_token": "<unk>", "word_delimiter_token": "|", "cleanup": True}
    return Tokenizer.from_str(json.dumps(value))


KINDS = {"gpt2": gpt2, "roberta": roberta, "llama3": llama3, "qwen2": lambda: split_then_bytes(LLAMA3.replace("{1,3}", ""), normalizer=normalizers.NFC()),
         "bloom": lambda: split_then_bytes(BLOOM), "matrix": matrix, "llama2": llama2, "bert": bert, "bert_cased": bert_cased, "unigram": unigram,
         "unigram_bytes": unigram_bytes, "word_level": word_level, "suffix_bpe": suffix_bpe, "dropped": dropped}


def component_cases():
    """Every normalizer, pre-tokenizer and pattern by itself, over a word-level model that knows nothing: pieces and offsets."""
    patterns = [LLAMA3, BLOOM, r"\d+|\w", r"(?=[A-Z])", r"\s+$|^\s+", r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                r"[\p{L}&&[^a-m]]+", r"(?<=a)b|(?<![a-z])x", r"(?>a+)b|(ab)*?c", r"[一-龥぀-ゟ゠-ヿ]+", r"\p{Han}+|\p{Cyrillic}|\P{L}", r"(?i)HELLO|[k-m]+", r"[[:punct:]]+|[[:alpha:]&&[^aeiou]]", r".{2,3}?\b|\Bo", r"a{2,}|b{,2}|\x41|\u00e9|\t",
                r"(?:x|xy|xyz)*z|(a|b|)*c", r"\p{N}", r"[0-9][0-9][0-9]", r"\n|[^\n]+", r"[\s\-]+|[a\-z]|[]x]", r"\A.|.\z|\h\H"]
    splits = [json.loads(pre_tokenizers.Split(Regex(p), "isolated").__getstate__()) for p in patterns]
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            splits.append(json.loads(pre_tokenizers.Split(Regex(r"[\s.,]"), behavior, invert).__getstate__()))
        splits.append(json.loads(pre_tokenizers.Split("o", behavior).__getstate__()))
    others = [{"type": "ByteLevel", "add_prefix_space": a, "trim_offsets": True, "use_regex": r} for a in (True, False) for r in (True, False)]
    others += [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": s, "split": b} for s in ("always", "first", "never") for b in (True, False)]
    others += [{"type": t} for t in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts")]
    others += [{"type": "Punctuation", "behavior": b} for b in ("Isolated", "Removed", "Contiguous", "MergedWithNext")]
    others += [{"type": "Digits", "individual_digits": b} for b in (True, False)] + [{"type": "CharDelimiterSplit", "delimiter": "o"}, {"type": "FixedLength", "length": 3}]
    short = [t for t in TEXTS if 0 < len(t) < 60]
    probe = short[:44:2] + short[-9::3] + ["it's 12345 déjà–vu","Hello aaab abc xx ab xyzxyz MixedCase K k\u212a", "a b\n c \n\n d  ", "aab ab b xb x ax"]
    found = {"texts": probe, "pre_tokenizers": [], "normalizers": []}
    for what in splits + others:
        value = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": what, "post_processor": None, "decoder": None,
                 "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}}
        t = Tokenizer.from_str(json.dumps(value))
        offsets = [[n for o in t.encode(text).offsets for n in o] for text in probe]
        found["pre_tokenizers"].append({"what": what, "offsets": offsets})
    norms = [{"type": t} for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")]
    norms += [{"type": "Strip", "strip_left": a, "strip_right": b} for a in (True, False) for b in (True, False)]
    norms += [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": "__"}, {"type": "Replace", "pattern": {"String": "a"}, "content": ""}]
    norms += [{"type": "BertNormalizer", "clean_text": c, "handle_chinese_chars": h, "strip_accents": s, "lowercase": l}
              for c, h, s, l in ((True, True, None, True), (False, True, True, False), (True, False, False, True), (False, False, None, False))]
    norms += [{"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "NFKC"}]}]
    for what in norms:
        value = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": what, "pre_tokenizer": None, "post_processor": None, "decoder": None,
                 "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]] , "byte_fallback": False}}
        t = Tokenizer.from_str(json.dumps(value))
        # One character a piece, so that every offset is seen.
        t.pre_tokenizer = pre_tokenizers.FixedLength(1)
        encodings = [t.encode(text) for text in probe]
        found["normalizers"].append({"what": what, "texts": ["".join(e.tokens) for e in encodings],
                                     "offsets": [[n for o in e.offsets for n in o] for e in encodings]})
    folder = HERE / "components"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f'"texts": {json.dumps(probe, ensure_ascii=False)}']
    for kind in ("pre_tokenizers", "normalizers"):
        rows = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in found[kind])
        lines.append(f'"{kind}": [\n{rows}\n]')
    (folder / "cases.json").write_text("{" + ",\n".join(lines) + "}\n")


def main():
    chosen = sys.argv[1:] or [*KINDS, "components"]
    for name in chosen:
        if name == "components":
            component_cases()
        else:
            write(name, saved(name, KINDS[name]))


if __name__ == "__main__":
    main()
