"""Fixtures of the plain formats, made and read by their originals: torchvision's ImageFolder and CIFAR10, numpy's pickles.

    python tests/io/make_plain_fixtures.py          writes tests/io/fixtures/plain
"""

import hashlib
import io
import pathlib
import pickle
import shutil
import struct

import numpy as np
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100, ImageFolder

ROOT = pathlib.Path(__file__).parent / "fixtures" / "plain"


def image_folder():
    """Names that a careless sort puts elsewhere: case, digits, nested folders, '-' before '/', letters beyond ASCII."""
    files = [
        "Zebra/1.png", "Zebra/10.png", "Zebra/2.PNG", "apple/b.jpeg", "apple/a.JPG", "apple/B.png", "apple/notes.txt",
        "apple/in-depth/x.png", "apple/in/x.png", "apple/in/deeper/y.jpg", "apple/in.png", "élan/ü.png", "élan/u.png",
        "10/a.png", "9/a.png", "top.png", "yak/.hidden.png", "yak/a.png.png",
    ]
    folder = ROOT / "folder"
    for i, name in enumerate(files):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".txt"):
            path.write_text("no image\n")
        else:
            kind = "JPEG" if "jp" in name.lower().rsplit(".", 1)[1] else "PNG"
            Image.new("RGB", (2, 2), (i * 10, 255 - i, i)).save(path, format=kind)
    data = ImageFolder(folder)
    lines = [f"{pathlib.Path(path).relative_to(folder)}\t{label}" for path, label in data.samples]
    (ROOT / "folder_order.txt").write_text("\n".join(lines) + "\n")
    (ROOT / "folder_classes.txt").write_text("\n".join(data.classes) + "\n")


class Python2Pickler(pickle._Pickler):
    """Strings and bytes as Python 2 wrote them, in which the data sets were published."""

    def save_raw(self, obj):
        raw = obj.encode("latin1") if isinstance(obj, str) else obj
        if len(raw) < 256:
            self.write(pickle.SHORT_BINSTRING + bytes([len(raw)]) + raw)
        else:
            self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
        self.memoize(obj)

    dispatch = {**pickle._Pickler.dispatch, str: save_raw, bytes: save_raw}


def dump(path, value, python2=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not python2:
        path.write_bytes(pickle.dumps(value, protocol=4))
        return
    out = io.BytesIO()
    Python2Pickler(out, protocol=2).dump(value)
    path.write_bytes(out.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def expected(data, path):
    """The sum of each plane, one pixel that tells rows from columns, and the label."""
    lines = []
    for image, label in zip(data.data, data.targets):
        sums = image.reshape(-1, 3).astype(np.int64).sum(0)
        lines.append(" ".join(str(x) for x in [*sums, *image[3, 5], label]))
    path.write_text("\n".join(lines) + "\n")


def cifar():
    random = np.random.RandomState(0)
    names10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]

    def pixels(count):
        # Few different bytes: the repository compresses them well.
        return np.repeat(np.repeat(random.randint(0, 255, (count, 3, 4, 4), dtype=np.uint8), 8, 2), 8, 3).reshape(count, 3072)

    base = ROOT / "cifar10" / CIFAR10.base_folder
    for name, count in [("data_batch_1", 3), ("data_batch_2", 2), ("test_batch", 2)]:
        dump(base / name, {"batch_label": name, "labels": [int(x) for x in random.randint(0, 10, count)],
                           "data": pixels(count), "filenames": [f"{i}.png" for i in range(count)]})
    dump(base / "batches.meta", {"num_cases_per_batch": 3, "label_names": names10, "num_vis": 3072})

    class Small10(CIFAR10):
        train_list = [["data_batch_1", md5(base / "data_batch_1")], ["data_batch_2", md5(base / "data_batch_2")]]
        test_list = [["test_batch", md5(base / "test_batch")]]
        meta = {"filename": "batches.meta", "key": "label_names", "md5": md5(base / "batches.meta")}

    expected(Small10(ROOT / "cifar10", train=True), ROOT / "cifar10_train.txt")
    expected(Small10(ROOT / "cifar10", train=False), ROOT / "cifar10_test.txt")

    base = ROOT / "cifar100" / CIFAR100.base_folder
    for name, count in [("train", 3), ("test", 1)]:
        dump(base / name, {"filenames": [f"{i}.png" for i in range(count)], "batch_label": "batch 1 of 1",
                           "fine_labels": [int(x) for x in random.randint(0, 100, count)],
                           "coarse_labels": [int(x) for x in random.randint(0, 20, count)], "data": pixels(count)},
             python2=name == "train")
    dump(base / "meta", {"fine_label_names": [f"fine_{i}" for i in range(100)],
                         "coarse_label_names": [f"coarse_{i}" for i in range(20)]})

    class Small100(CIFAR100):
        train_list = [["train", md5(base / "train")]]
        test_list = [["test", md5(base / "test")]]
        meta = {"filename": "meta", "key": "fine_label_names", "md5": md5(base / "meta")}

    expected(Small100(ROOT / "cifar100", train=True), ROOT / "cifar100_train.txt")
    expected(Small100(ROOT / "cifar100", train=False), ROOT / "cifar100_test.txt")


if __name__ == "__main__":
    shutil.rmtree(ROOT, ignore_errors=True)
    image_folder()
    cifar()
