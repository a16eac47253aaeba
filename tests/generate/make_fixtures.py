"""Writes what the tests of levin/generate compare with: tokens, beams and filtered probabilities of transformers. Run:
python tests/generate/make_fixtures.py [NAME...]
"""
import inspect
import json
import pathlib
import re
import sys

import torch
import transformers as T
from safetensors.torch import save_file
from transformers.generation import logits_process as P

HERE = pathlib.Path(__file__).parent / "fixtures"
MODELS = HERE.parent.parent / "models" / "fixtures" / "language"
NAMES = """bloom bloom_residual galactica gemma gemma2 gpt2 gpt2_bin gpt2_by_layer gpt_neox gpt_neox_odd gpt_neox_sequential llama llama_biases
llama_dynamic llama_linear llama_rope3 llama_yarn mistral opt opt_post qwen2 qwen3""".split()
PROMPTS = [[7, 3, 11, 42, 5], [9, 30, 2, 2, 17, 8, 1, 44, 23], [13]]
NEW = 64
BEAMS = [dict(num_beams=4), dict(num_beams=3, length_penalty=-1.0), dict(num_beams=3, length_penalty=2.0, early_stopping=True),
         dict(num_beams=2, repetition_penalty=1.4, no_repeat_ngram_size=2),
         dict(num_beams=3, renormalize_logits=True, encoder_repetition_penalty=1.3, begin_suppress_tokens=[8, 46], exponential_decay_length_penalty=[4, 1.1])]


def longer(table, offset):
    """Rows of learned positions again and again, for 80 positions: the tests do the same."""
    rows = table.weight.data
    table.weight = torch.nn.Parameter(torch.cat([rows[:offset], rows[offset:].repeat(5, 1)]))


def load(name):
    model = T.AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32).eval()
    if name.startswith("gpt2"):
        longer(model.transformer.wpe, 0)
    if name.startswith(("opt", "galactica")):
        longer(model.model.decoder.embed_positions, 2)
    model.generation_config = T.GenerationConfig(pad_token_id=0)
    return model


def tokens(names):
    file = HERE / "tokens.json"
    out = json.loads(file.read_text()) if file.exists() else {}
    for name in names:
        model = load(name)
        rows, margins = [], []
        for prompt in PROMPTS:
            if "dynamic" in name:  # its frequencies remember the longest sequence of earlier calls
                model = load(name)
            made = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True, output_scores=True)
            rows.append(made.sequences[0, len(prompt):].tolist())
            best = torch.stack(made.scores)[:, 0].topk(2).values
            margins.append((best[:, 0] - best[:, 1]).min().item())
        out[name] = {"greedy": rows}
        print(name, "least margin", min(margins), "distinct tokens", len(set(sum(rows, []))))
        if name in ("llama", "gpt2", "bloom", "mistral"):
            # Tokens that come often are the ends.
            flat = sum(rows, [])
            ends = sorted(set(flat), key=lambda t: -flat.count(t))[1:3]
            out[name]["ends"] = ends
            out[name]["beams"] = []
            for options in BEAMS:
                n = options["num_beams"]
                made = model.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=12, do_sample=False, eos_token_id=ends, num_return_sequences=n,
                                      return_dict_in_generate=True, output_scores=True, **options)
                rows_ = []
                for ids in made.sequences[:, len(PROMPTS[0]):].tolist():
                    stop = next((i + 1 for i, t in enumerate(ids) if t in ends), len(ids))
                    rows_.append(ids[:stop])
                out[name]["beams"].append({"options": options, "ids": rows_, "scores": made.sequences_scores.tolist()})
            made = model.generate(torch.tensor([PROMPTS[1]]), max_new_tokens=20, do_sample=False, eos_token_id=ends, repetition_penalty=1.3,
                                  no_repeat_ngram_size=3, min_new_tokens=6, suppress_tokens=[4, 5])
            out[name]["penalized"] = made[0, len(PROMPTS[1]):].tolist()
    file.write_text(json.dumps(out) + "\n")


FILTERS = [
    dict(temperature=0.7), dict(temperature=1.5, top_k=5), dict(top_k=1), dict(top_p=0.5), dict(top_p=0.9, temperature=2.0), dict(top_p=0.0),
    dict(min_p=0.2), dict(typical_p=0.4), dict(typical_p=0.95, top_k=20), dict(repetition_penalty=1.7), dict(repetition_penalty=0.6, top_p=0.8),
    dict(no_repeat_ngram_size=1), dict(no_repeat_ngram_size=2, temperature=0.9),
    dict(repetition_penalty=1.2, no_repeat_ngram_size=3, temperature=0.8, top_k=25, top_p=0.95, min_p=0.02, typical_p=0.9),
]


def processors(o):
    out = T.LogitsProcessorList()
    add = lambda name, make: out.append(make(o[name])) if name in o else None
    add("repetition_penalty", P.RepetitionPenaltyLogitsProcessor)
    add("no_repeat_ngram_size", P.NoRepeatNGramLogitsProcessor)
    add("temperature", P.TemperatureLogitsWarper)
    add("top_k", P.TopKLogitsWarper)
    add("top_p", P.TopPLogitsWarper)
    add("min_p", P.MinPLogitsWarper)
    add("typical_p", P.TypicalLogitsWarper)
    return out


def filters():
    torch.manual_seed(0)
    rows, words = 10, 32
    logits = torch.randn(rows, words) * torch.linspace(0.5, 4, rows).unsqueeze(1)
    logits[3] = (logits[3] * 2).round() / 2  # equal ones
    ids = torch.randint(0, 12, (rows, 14))
    ids[:, -2:] = ids[:, 3:5]
    # Equal logits at the edge of top_p stay or go with the order of a sort.
    out = {"logits": logits, "ids": ids}
    for i, options in enumerate(FILTERS):
        scores = logits.clone()
        if "top_p" in options or "typical_p" in options:
            scores[3] = logits[3] + torch.arange(words) * 0.01
        out[f"probabilities.{i}"] = processors(options)(ids, scores).softmax(-1)
    save_file(out, HERE / "filters.safetensors")
    (HERE / "filters.json").write_text(json.dumps(FILTERS) + "\n")


def fields():
    """All that a GenerationConfig reads."""
    names = {name for name in vars(T.GenerationConfig()) if not name.startswith("_")}
    names |= set(re.findall(r'kwargs.pop\("(\w+)"', inspect.getsource(T.GenerationConfig.__init__)))
    (HERE / "generation_fields.json").write_text(json.dumps({"transformers": T.__version__, "fields": sorted(names)}, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    HERE.mkdir(exist_ok=True)
    fields()
    filters()
    tokens(sys.argv[1:] or NAMES)
