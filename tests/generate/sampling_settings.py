"""Random mixes of the settings that choose a token, and what `generate` of transformers makes of them.

python tests/generate/sampling_settings.py [--seed 0] [--count 120] [--out FOLDER] [--rules]
  writes settings.json and settings.safetensors: for each mix the prompt, the tokens, and the logits and probabilities of each step. By
  default those of sampler_test; it reads another folder where LEVIN_SETTINGS names one. --rules: the rarer settings too, in rules.json
  and rules.safetensors.
python tests/generate/sampling_settings.py --levin build/bin/levin [--seed 0] [--count 30] [--draws 20000]
  draws with the program for every architecture, and compares with the probabilities of transformers by a chi-square test.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

import torch
import transformers as T
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent / "fixtures"
MODELS = HERE.parent.parent / "models" / "fixtures" / "language"
WORDS = 50
STEPS = 2


def decoders():
    """Not opt_wide: its last norm has a name of old files, which transformers 5 does not read."""
    names = sorted(folder.name for folder in MODELS.iterdir() if (folder / "config.json").exists() and folder.name != "opt_wide")
    return [name for name in names if "ForCausalLM" in (text := (MODELS / name / "config.json").read_text()) or "LMHeadModel" in text]


def some(draw, most):
    return sorted(draw.sample(range(WORDS), draw.randint(1, most)))


def rules(draw, ids, value):
    """The settings that few models have."""
    return {
        "top_h": lambda: value([0.05, 1.0], lambda: draw.uniform(0.2, 0.9)),
        "epsilon_cutoff": lambda: value([1e-4, 0.9], lambda: draw.uniform(0.001, 0.05)),
        "eta_cutoff": lambda: value([1e-4, 0.9], lambda: draw.uniform(0.001, 0.05)),
        "encoder_repetition_penalty": lambda: value([1.0, 5.0], lambda: draw.uniform(0.5, 2)),
        "encoder_no_repeat_ngram_size": lambda: draw.randint(1, 3),
        "min_length": lambda: len(ids) + draw.randint(0, STEPS),
        "begin_suppress_tokens": lambda: some(draw, 6),
        "forced_bos_token_id": lambda: draw.randrange(WORDS),
        "forced_eos_token_id": lambda: some(draw, 3),
        "exponential_decay_length_penalty": lambda: [draw.randint(0, 1), draw.uniform(1.01, 3)],
        "remove_invalid_values": lambda: True,
        "renormalize_logits": lambda: True,
        "sequence_bias": lambda: [[ids[-draw.randint(1, len(ids)):] + [id] if draw.random() < 0.5 else [id], draw.gauss(0, 2)] for id in some(draw, 6)],
    }


def mix(draw, program=False, rare=False):
    """Each setting is there in one mix of three, and an edge of its range in one of five. With `program`: what the program has flags for."""
    ids = [draw.randrange(6) for _ in range(draw.choice([1, 4, 10]) if rare else draw.randint(1, 10))]

    def value(edges, between):
        return draw.choice(edges) if draw.random() < 0.2 else between()

    maker = {
        "temperature": lambda: value([0.05, 1.0, 10.0], lambda: draw.uniform(0.4, 3)),
        "top_k": lambda: value([1, 49, 50, 500], lambda: draw.randint(5, 45)),
        "top_p": lambda: value([0.0, 0.999, 1.0], lambda: draw.uniform(0.3, 1)),
        "min_p": lambda: value([0.0, 1.0], lambda: draw.uniform(0, 0.3)),
        "typical_p": lambda: value([0.01, 0.999, 1.0], lambda: draw.uniform(0.2, 1)),
        "repetition_penalty": lambda: value([1.0, 10.0], lambda: draw.uniform(0.5, 2)),
        "no_repeat_ngram_size": lambda: draw.randint(0, 4),
        "suppress_tokens": lambda: some(draw, 6),
        "eos_token_id": lambda: some(draw, 4),
        "min_new_tokens": lambda: draw.randint(1, STEPS),
    }
    if not program:
        maker["bad_words_ids"] = lambda: bad_words(draw, ids)
        maker["sequence_bias"] = lambda: [[[id], value([-100.0, 100.0], lambda: draw.gauss(0, 2))] for id in some(draw, 8)]
    if rare:
        maker = {**{name: maker[name] for name in ("temperature", "top_k", "repetition_penalty", "suppress_tokens", "eos_token_id")}, **rules(draw, ids, value)}
    settings = {name: make() for name, make in maker.items() if draw.random() < 0.35}
    if "exponential_decay_length_penalty" in settings or "min_length" in settings:
        settings.setdefault("eos_token_id", some(draw, 4))
    if "bad_words_ids" in settings and draw.random() < 0.3:  # ends that are forbidden as words
        settings["bad_words_ids"].append(settings.get("eos_token_id", [3])[:1])
    return ids, settings


def bad_words(draw, ids):
    """Words of one token, words that the prompt begins, one that is longer than it, and others."""
    words = [[id] for id in some(draw, 4)]
    for _ in range(draw.randint(1, 6)):
        begin = ids[-draw.randint(1, len(ids)):]
        words.append(draw.choice([begin, begin[:-1] + [draw.randrange(6)], [draw.randrange(6)] + ids]) + [draw.randrange(WORDS)])
    return words


def distributions(name, ids, settings, factor=1.0, steps=STEPS):
    """The tokens that transformers' generate drew, and the logits and probabilities of each."""
    model = T.AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32).eval()
    model.generation_config = T.GenerationConfig(pad_token_id=0, top_k=0)
    model.get_output_embeddings().register_forward_hook(lambda _, __, out: out * factor)  # nearly equal logits hide mistakes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # With a mask: transformers takes tokens of the prompt that equal the padding for padding.
        made = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=steps, do_sample=True,
                              return_dict_in_generate=True, output_scores=True, output_logits=True, **settings)
    return made.sequences[0, len(ids):].tolist(), torch.cat(made.logits), torch.cat(made.scores).softmax(-1)


def write(args):
    draw = random.Random(args.seed)
    torch.manual_seed(args.seed)
    names, mixes, tensors = decoders(), [], {"logits": [], "probabilities": []}
    while len(mixes) < args.count:
        ids, settings = mix(draw, rare=args.rules)
        name = names[len(mixes) % len(names)]
        try:
            new, logits, probabilities = distributions(name, ids, settings, draw.choice([1, 4, 16]))
        except (RuntimeError, ValueError):  # no token is left
            continue
        if probabilities.isnan().any():
            continue
        mixes.append({"model": name, "prompt": ids, "new": new, "settings": settings})
        tensors["logits"].append(logits)
        tensors["probabilities"].append(probabilities)
    args.out.mkdir(parents=True, exist_ok=True)
    kind = "rules" if args.rules else "settings"
    save_file({key: torch.cat(parts) for key, parts in tensors.items()}, args.out / f"{kind}.safetensors")
    (args.out / f"{kind}.json").write_text("[" + ",\n".join(json.dumps(each) for each in mixes) + "]\n")
    print(f"{len(mixes)} mixes of {len(names)} models, {sum(map(len, tensors['logits']))} distributions")


FLAGS = {"top_k": "top-k", "top_p": "top-p", "min_p": "min-p", "typical_p": "typical-p", "repetition_penalty": "repetition-penalty",
         "no_repeat_ngram_size": "no-repeat-ngram-size", "suppress_tokens": "suppress-token", "eos_token_id": "eos"}


def compare(args):
    """Draws of the first token: chi-square beside its limit at 1 in 10,000, with tokens of which fewer than 5 are expected as one."""
    draw = random.Random(args.seed)
    torch.manual_seed(args.seed)
    names, worst, bad, done = decoders(), 0.0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        source, result = pathlib.Path(folder) / "in.jsonl", pathlib.Path(folder) / "out.jsonl"
        while done < args.count:
            name = names[done % len(names)]
            ids, settings = mix(draw, program=True)
            settings.pop("min_new_tokens", None)
            try:
                expected = distributions(name, ids, settings, steps=1)[2][0].double() * args.draws
            except RuntimeError:  # no token is left
                continue
            source.write_text(json.dumps({"ids": ids}) + "\n")
            flags = [] if "eos_token_id" in settings else ["--ignore-eos"]
            flags += ["--paged"] if draw.random() < 0.5 else []
            for key, flag in FLAGS.items():
                values = settings.get(key, [])
                flags += [word for value in (values if isinstance(values, list) else [values]) for word in ("--" + flag, str(value))]
            ran = subprocess.run([args.levin, "generate", str(MODELS / name), str(source), str(result), "1", str(settings.get("temperature", 1)),
                                  "--json", "--overwrite", "--num-return-sequences", str(args.draws), "--batch", "1000", "--seed",
                                  str(draw.randrange(1 << 30)), *flags], capture_output=True, text=True, check=False)
            if ran.returncode != 0:
                sys.exit(f"sampling_settings: {name} {ids} {settings}: {ran.stderr[-1000:]}")
            counts = torch.bincount(torch.tensor([json.loads(line)["ids"][0] for line in result.open()]), minlength=WORDS).double()
            impossible = int(counts[expected == 0].sum())
            often = expected >= 5
            pairs = torch.stack([torch.cat([counts[often], counts[~often].sum(0, True)]), torch.cat([expected[often], expected[~often].sum(0, True)])])
            pairs = pairs[:, pairs[1] >= 5]
            chi = ((pairs[0] - pairs[1]) ** 2 / pairs[1]).sum().item()
            k = max(pairs.size(1) - 1, 1)
            limit = k * (1 - 2 / (9 * k) + 3.72 * (2 / (9 * k)) ** 0.5) ** 3  # Wilson and Hilferty
            worst, bad, done = max(worst, chi / limit), bad + (impossible > 0 or chi > limit), done + 1
            print(f"{name:<22} tokens {int((expected > 0).sum()):>2}  chi-square {chi:7.2f} of {limit:7.2f}  impossible {impossible}  {settings}", flush=True)
    print(f"{done} mixes of {len(names)} models, {args.draws} draws each: {bad} bad, chi-square at most {worst:.2f} of its limit")
    if bad:
        sys.exit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    parser.add_argument("--rules", action="store_true", help="the rarer settings too")
    parser.add_argument("--levin", help="draw with this program")
    parser.add_argument("--draws", type=int, default=20000)
    asked = parser.parse_args()
    asked.count = asked.count or (30 if asked.levin else 120)
    T.logging.set_verbosity_error()
    T.logging.disable_progress_bar()
    torch.set_num_threads(1)
    compare(asked) if asked.levin else write(asked)
