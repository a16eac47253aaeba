"""Writes the fixtures of tests/loggers with Lightning, torch.utils.tensorboard and PyYAML.

    python make_fixtures.py [FOLDER_WRITTEN_BY_THE_TEST]

With a folder (LEVIN_LOGGERS_KEEP=FOLDER loggers_test writes one) it checks what Levin wrote there: hparams.yaml must read back
as the tree below, and events.levin must say to TensorBoard what calls.json says (read_events.py); both then
become fixtures, *.levin*, to which every later build must be equal.
"""
import json
import math
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import torch
import yaml
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

HERE = pathlib.Path(__file__).parent
FIXTURES = HERE / "fixtures"
DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool"]


def csv_rows():
    """[step, [[name, kind, text]]]: kind is float (as hex), int, or a dtype of a tensor."""
    generator = random.Random(7)
    rows = []
    special = [0.0, -0.0, 1.0, 1e-05, 0.1, 1e16, 1e15, 123456789012345680.0, 1e22, 5e-324, 1.7976931348623157e308, math.nan, math.inf,
               -math.inf, 0.0001, 0.00012345, 1 / 3, 9007199254740993.0, 2.5e-10, 100.0, 1e100]
    for i, value in enumerate(special):
        rows.append([i, [["loss", "float", value.hex()], ["epoch", "int", "0"]]])
    for i in range(len(special), 160):
        row = [["epoch", "int", str(i // 40)], ["loss", "float", (generator.uniform(-1, 1) * 10 ** generator.randint(-320, 300)).hex()]]
        if i > 40:
            row.append(["acc, \"top 1\"", "float32", generator.random().hex()])
        if i > 70 and i % 3 == 0:
            row.append(["Zeta/ü", DTYPES[i % len(DTYPES)], float(generator.randint(0, 200)).hex()])
        if i > 110:
            row.append(["a\nb", "float", float(generator.randint(0, 9)).hex()])
        if i == 140:
            row = [["val_loss", "float64", "0x1.8p+1"], ["step", "int", "99"]]
        rows.append([i * 5, row])
    return rows


def value_of(kind, text):
    if kind == "int":
        return int(text)
    number = float.fromhex(text)
    return number if kind == "float" else torch.tensor(number).to(getattr(torch, kind))


def write_csv(folder):
    rows = csv_rows()
    (FIXTURES / "rows.json").write_text(json.dumps(rows, ensure_ascii=False))
    logger = CSVLogger(folder, flush_logs_every_n_steps=50)
    for step, metrics in rows:
        logger.log_metrics({name: value_of(kind, text) for name, kind, text in metrics}, step)
    logger.finalize("success")
    shutil.copy(pathlib.Path(logger.log_dir) / "metrics.csv", FIXTURES / "metrics.csv")


# What the test of hparams.yaml writes too: bytes for the ordinary ones, values for all.
HPARAMS = {
    "lr": 1e-5, "batch_size": 64, "name": "vit_b_16", "amp": True, "none": None, "betas": [0.9, 0.999], "empty": [], "nothing": {},
    "model": {"layers": 12, "act": "gelu", "sizes": [[1, 2], [3, 4]], "heads": [{"dim": 64, "name": "a"}, {"dim": 32, "name": "b"}]},
    "huge": 1e16, "tiny": 5e-324, "one": 1.0, "inf": math.inf, "neg": -math.inf, "zero": -0.0, "path": "/data/run 1/x.yaml", "count": -3,
}
STRINGS = ["", " ", "yes", "No", "on", "null", "~", "true", "1", "1.0", "1e5", "0x10", "2020-01-01", "a: b", "a #b", "- x", "[1]", "{a}",
           "it's", "\"q\"", "line\nbreak", "tab\there", "ü Ω 漢字 😀", "back\\slash", "&x", "*x", "!x", "%x", "@x", "`x", "=", "<<", "a ",
           " a", "\u2028x", "\u0085y", "\x00\x07", "\x7f", "\ufeff", "y", "n", ".inf", ".nan", "12:30:45", "?", "? x", ":", "x:", "---", "...",
           "1_000", "+1", "e5", "_1", "'", "''", "a\r\nb", "x" * 300, "key with spaces", "k=v (x)", "|", ">", ",", "\ud7ff\ue000\ufffd"]


def write_hparams():
    tree = dict(HPARAMS)
    (FIXTURES / "hparams.yaml").write_text(yaml.dump(tree))
    tree["strings"] = STRINGS
    tree["keys"] = {text: i for i, text in enumerate(STRINGS)} | {"long " * 300: {"a": [1]}, "longer " * 300: 2}
    (FIXTURES / "strings.json").write_text(json.dumps(STRINGS))
    return tree


def write_events(folder):
    """The same calls as in tensorboard_test.cpp. Sums of these values are exact, whatever the order of summation."""
    writer = SummaryWriter(folder / "torch")
    for step, value in enumerate([0.5, 0.1, -3.25, 0.0, math.inf, 1e-30]):
        writer.add_scalar("loss", value, step, walltime=1700000000.25 + step)
    writer.add_scalar("epoch", 3, 7, walltime=1700000010)
    writer.add_histogram("weights", torch.arange(-300, 301).double() / 8, 1, walltime=1700000011)
    writer.add_histogram("one", torch.tensor([2.0]), 2, walltime=1700000012)
    writer.add_histogram("integers", torch.tensor([[0, 0, 1], [-4, 5, 5]]), 3, walltime=1700000013)
    writer.add_histogram("extremes", torch.tensor([0.0, 2.0**66, -(2.0**66), 2.0**-41, 2.0**70], dtype=torch.float64), 4, walltime=1700000014)
    writer.add_text("note", "# Überschrift\nText", 5, walltime=1700000015)
    writer.add_text("empty", "", 6, walltime=1700000016)
    writer.close()
    import time
    time_time, time.time = time.time, lambda: 1700000017.0
    logger = TensorBoardLogger(folder, name="lightning")
    logger.log_hyperparams({"lr": 0.5})
    logger.finalize("success")
    time.time = time_time
    torch_file, = (folder / "torch").glob("events*")
    lightning_file, = pathlib.Path(logger.log_dir).glob("events*")
    (FIXTURES / "events.torch").write_bytes(torch_file.read_bytes())
    (FIXTURES / "events.lightning").write_bytes(lightning_file.read_bytes())


def same(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b) or a != a and b != b
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b


def check(folder):
    tree = yaml.safe_load((folder / "hparams.yaml").read_bytes())
    assert same(tree, write_hparams()), "hparams.yaml reads back as something else"
    shutil.copy(folder / "hparams.yaml", FIXTURES / "hparams.levin.yaml")
    subprocess.run([sys.executable, HERE / "read_events.py", folder / "events.levin", folder / "calls.json"], check=True)
    shutil.copy(folder / "events.levin", FIXTURES / "events.levin")
    print("checked, and kept as fixtures")


def main():
    FIXTURES.mkdir(exist_ok=True)
    if len(sys.argv) > 1:
        return check(pathlib.Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        write_csv(folder)
        write_hparams()
        write_events(pathlib.Path(folder))


if __name__ == "__main__":
    main()
