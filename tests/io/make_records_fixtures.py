"""Writes the files of records that the tests read, each with the tool that people write such files with.

    python make_records_fixtures.py [tar | tfrecord | tensorflow | lmdb | hdf5 | packed | odd ...]

all but tensorflow when none is named: it cannot be in one process with tfrecord. Needs webdataset, tfrecord, lmdb, h5py, numpy, zstd and
GNU tar. expected.json says what each file holds, under the names that Levin gives to fields.
"""
import gzip
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zlib

import numpy as np

ROOT = pathlib.Path(__file__).parent / "fixtures" / "records"
RANDOM = np.random.default_rng(7)
LONG = "a-folder-with-a-rather-long-name/" * 5 + "and-a-file-with-a-name-that-is-longer-than-one-hundred-characters-" + "x" * 60


def png(size=4):
    """A real picture of random pixels."""
    rows = b"".join(b"\0" + RANDOM.bytes(size * 3) for _ in range(size))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def field(value):
    if isinstance(value, (bytes, str)):
        return {"bytes": (value.encode() if isinstance(value, str) else value).hex()}
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "data": np.ascontiguousarray(value).tobytes().hex()}
    values = list(value)
    return {"ints": values} if all(isinstance(v, int) for v in values) else {"floats": values}


def record(key, **fields):
    return {"key": key, "fields": {name: field(value) for name, value in fields.items()}}


def tar_files(expected):
    import webdataset as wds

    samples = [{"__key__": f"{i:06d}", "png": png(), "cls": str(i % 3).encode(), "seg.png": b"seg" + bytes([i])} for i in range(5)]
    samples[2]["scores.json"] = b"[0.5, 1.25]"
    samples[3]["box.npy"] = np.arange(6, dtype=np.float32).reshape(2, 3)
    samples[4]["TXT"] = b"a caption"
    with wds.TarWriter(str(ROOT / "wds.tar"), mtime=0) as out:
        for sample in samples:
            out.write(sample)
    # What webdataset itself reads, with its own extensions.
    read = list(wds.WebDataset(str(ROOT / "wds.tar"), shardshuffle=False))
    names = {"png": "image", "txt": "text", "scores.json": "scores", "box.npy": "box"}
    expected["wds.tar"] = []
    for i, sample in enumerate(read):
        fields = {names.get(ext, ext): value for ext, value in sample.items() if not ext.startswith("__") and ext != "cls"}
        fields["label"] = [int(sample["cls"])]
        if "scores" in fields:
            fields["scores"] = json.loads(fields["scores"])
        if "box" in fields:
            fields["box"] = np.load(io.BytesIO(fields["box"]))
        expected["wds.tar"].append(record(sample["__key__"], **fields))

    pattern = str(ROOT / "shard-%06d.tar")
    with wds.ShardWriter(pattern, maxcount=2, verbose=0, mtime=0) as out:
        for i in range(5):
            out.write({"__key__": f"s/{i}", "jpg": b"\xff\xd8\xff" + RANDOM.bytes(20), "json": b'{"label": %d, "other": []}' % i})
    read = list(wds.WebDataset(str(ROOT / "shard-{000000..000002}.tar"), shardshuffle=False))
    expected["shard-{000000..000002}.tar"] = [
        record(s["__key__"], image=s["jpg"], json=s["json"], label=[json.loads(s["json"])["label"]]) for s in read]

    # Long names, a folder, a link, names that are skipped, an upper-case extension, a dot file, by three writers.
    with tempfile.TemporaryDirectory() as folder:
        files = {"__meta__": b"none", "cat/1.png": png(), "cat/1.CLS": b"4\n", LONG + ".txt": b"long", LONG + ".seg.png": b"S" * 700,
                 "no-extension": b"-", "cat/.hidden": b"h", "dog/2.cls": b"5", "umlaut-\u00e4.txt": b"u"}
        for name, data in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        os.symlink("1.png", folder + "/cat/9.png")
        order = ["__meta__", "cat", "cat/1.png", "cat/1.CLS", "cat/9.png", LONG + ".txt", LONG + ".seg.png", "no-extension", "cat/.hidden",
                 "dog/2.cls", "umlaut-\u00e4.txt"]
        for kind in ["gnu", "pax", "ustar", "v7"]:
            names = [n for n in order if len(n) < 100 or kind in ("gnu", "pax")]
            subprocess.run(["tar", "--create", f"--format={kind}", "--no-recursion", "--mtime=@0", "--owner=o:1", "--group=g:1", "--file",
                            str(ROOT / f"gnutar-{kind}.tar"), "-C", folder, *names], check=True)
        for kind in ["GNU", "PAX"]:
            with tarfile.open(ROOT / f"tarfile-{kind.lower()}.tar", "w", format=getattr(tarfile, kind + "_FORMAT")) as out:
                for name in order:
                    out.add(pathlib.Path(folder, name), name, recursive=False, filter=lambda m: m.replace(mtime=0, uid=1, gid=1, deep=False))
    for path in sorted(ROOT.glob("gnutar-*.tar")) + sorted(ROOT.glob("tarfile-*.tar")):
        names = {"png": "image", "txt": "text", "cls": "label"}
        expected[path.name] = []
        for sample in wds.WebDataset(str(path), shardshuffle=False):
            fields = {names.get(ext, ext): value for ext, value in sample.items() if not ext.startswith("__")}
            if "label" in fields:
                fields["label"] = [int(fields["label"])]
            expected[path.name].append(record(sample["__key__"], **fields))


def tfrecord_files(expected):
    import tfrecord

    path = ROOT / "tfrecord.tfrecord"
    writer = tfrecord.TFRecordWriter(str(path))
    rows = [(png(), i + 1, [0.5 * i, -1.5]) for i in range(4)]
    for image, label, floats in rows:
        writer.write({"image/encoded": (image, "byte"), "image/class/label": (label, "int"), "floats": (floats, "float"),
                      "many": ([2**40, -3, 0], "int")})
    writer.close()
    from tfrecord.tools import tfrecord2idx
    tfrecord2idx.create_index(str(path), str(path) + ".idx")
    wanted = [record(f"{i:08d}", image=image, label=[label], floats=floats, many=[2**40, -3, 0])
              for i, (image, label, floats) in enumerate(rows)]
    expected["tfrecord.tfrecord"] = wanted
    # Another name, so that no index fits, and no extension: known by its first bytes.
    shutil.copy(path, ROOT / "train-00000-of-00001")
    expected["train-00000-of-00001"] = wanted
    with open(path, "rb") as file:
        plain = file.read()
    (ROOT / "whole.tfrecord.gz").write_bytes(gzip.compress(plain, mtime=0))
    (ROOT / "whole.tfrecord.zlib").write_bytes(zlib.compress(plain))
    expected["whole.tfrecord.gz"] = expected["whole.tfrecord.zlib"] = wanted


def tensorflow_files(expected):
    import tensorflow as tf

    image = b"\xff\xd8\xff" + bytes(range(40))
    feature = {"image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
               "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[1000])),
               "image/class/text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"cat"])),
               "image/object/names": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a", b"b"])),
               "empty": tf.train.Feature(int64_list=tf.train.Int64List(value=[])),
               "box": tf.train.Feature(float_list=tf.train.FloatList(value=[0.25, 0.5]))}
    data = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
    for name, options in [("tensorflow.tfrecord", None), ("tensorflow.tfrecord.gz", "GZIP")]:
        with tf.io.TFRecordWriter(str(ROOT / name), options) as out:
            for _ in range(3):
                out.write(data)
        wanted = {"image": image, "label": [1000], "image/class/text": b"cat", "image/object/names/0": b"a", "image/object/names/1": b"b",
                  "empty": [], "box": [0.25, 0.5]}
        expected[name] = [{"key": f"{i:08d}", "fields": {n: field(v) for n, v in wanted.items()}} for i in range(3)]


def lmdb_files(expected):
    import lmdb

    def write(name, rows, subdir):
        path = ROOT / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        env = lmdb.open(str(path), map_size=1 << 20, subdir=subdir, lock=False)
        with env.begin(write=True) as txn:
            for key, value in rows:
                txn.put(key, value)
        env.close()

    images = [png() for _ in range(4)] + [b"\x89PNG\r\n\x1a\n" + RANDOM.bytes(5000)]
    rows = [(b"%06d.png" % i, image) for i, image in enumerate(images)] + [(b"%06d.cls" % i, b"%d" % (i % 2)) for i in range(5)]
    rows += [(b"__len__", b"5"), (b"__keys__", b"x"), (b"__classes__", b"cat\ndog\n")]
    wanted = [record(f"{i:06d}", image=image, label=[i % 2]) for i, image in enumerate(images)]
    write("members.lmdb", rows, True)
    write("members.mdb", rows, False)
    expected["members.lmdb"] = expected["members.mdb"] = wanted
    write("classes.lmdb", [(f"{c}/{i}.png".encode(), images[i]) for c in ["dog", "cat"] for i in range(2)], False)
    expected["classes.lmdb"] = [record(f"{c}/{i}", image=images[i], label=[n]) for n, c in enumerate(["cat", "dog"]) for i in range(2)]
    write("plain.lmdb", [(b"%d" % i, images[i]) for i in range(3)] + [(b"x", b"just bytes")], False)
    expected["plain.lmdb"] = [record(str(i), image=images[i]) for i in range(3)] + [record("x", data=b"just bytes")]
    write("pickled.lmdb", [(b"%d" % i, pickle.dumps((images[i], i))) for i in range(3)], False)


def hdf5_files(expected):
    import h5py

    n = 13
    pixels = RANDOM.integers(0, 256, (n, 4, 5, 3), dtype=np.uint8)
    labels = RANDOM.integers(0, 10, n)
    wanted = [record(f"{i:08d}", image=pixels[i], label=[int(labels[i])]) for i in range(n)]
    with h5py.File(ROOT / "contiguous.h5", "w") as out:
        out["images"], out["labels"] = pixels, labels
    with h5py.File(ROOT / "chunked.h5", "w") as out:
        out.create_dataset("images", data=pixels, chunks=(3, 4, 5, 3), compression="gzip", shuffle=True)
        out.create_dataset("labels", data=labels.astype("int32"), chunks=(5,), compression="gzip", shuffle=True)
        out.create_dataset("weights", data=np.arange(n, dtype=np.float64) / 4, chunks=(4,), shuffle=True)
        out["classes"] = ["c%d" % i for i in range(10)]
    with h5py.File(ROOT / "plainchunks.hdf5", "w") as out:
        out.create_dataset("data", data=pixels, chunks=(2, 4, 5, 3))
        out.create_dataset("label", data=labels.astype(np.uint8).reshape(n, 1), chunks=(13, 1))
    with h5py.File(ROOT / "splitchunks.h5", "w") as out:  # a row is in several chunks; fletcher32; big-endian labels
        out.create_dataset("x", data=pixels, chunks=(4, 2, 5, 3), compression="gzip", fletcher32=True)
        out.create_dataset("y", data=labels.astype(">i4"))
    with h5py.File(ROOT / "groups.h5", "w") as out:
        out["train/images"], out["train/labels"] = pixels, labels
        out["test/images"], out["test/labels"] = pixels[:2], labels[:2]
    for name in ["contiguous.h5", "plainchunks.hdf5", "splitchunks.h5", "groups.h5"]:
        expected[name] = wanted
    expected["chunked.h5"] = [record(w["key"]) | {"fields": w["fields"] | {"weights": field([i / 4])}} for i, w in enumerate(wanted)]

    images = [png() for _ in range(5)] + [b"\x89PNG" + RANDOM.bytes(6000)] + [b""]
    texts = [f"text {i} \u00e4" for i in range(7)]
    for name, chunks in [("vlen.h5", None), ("vlenchunks.h5", (3,))]:
        with h5py.File(ROOT / name, "w") as out:
            data = out.create_dataset("images", (7,), dtype=h5py.vlen_dtype(np.uint8), chunks=chunks, compression="gzip" if chunks else None)
            for i, image in enumerate(images):
                data[i] = np.frombuffer(image, np.uint8)
            out["labels"] = np.arange(7)
            out.create_dataset("text", data=texts, dtype=h5py.string_dtype())
            out.create_dataset("keys", data=[f"k{i}".encode() for i in range(7)], dtype="S3")
        expected[name] = [record(f"k{i}", image=images[i], label=[i], text=texts[i]) for i in range(7)]


def packed_files(expected):
    """The archive of webdataset, compressed as a whole."""
    archive = (ROOT / "wds.tar").read_bytes()
    (ROOT / "packed.tar.gz").write_bytes(gzip.compress(archive, 9, mtime=0))
    (ROOT / "packed.tar.zst").write_bytes(subprocess.run(["zstd", "-19", "-c"], input=archive, capture_output=True, check=True).stdout)
    expected["packed.tar.gz"] = expected["packed.tar.zst"] = expected["wds.tar"]


def odd_files(expected):
    """Files with numbers at the edge of their types, databases within a database, and what the HDF5 library cannot open."""
    import h5py
    import lmdb

    with h5py.File(ROOT / "odd-numbers.h5", "w") as out:
        out["f64"] = np.array([0.1, 1e300, -5e-324, np.pi])
        out["f64_row"] = np.array([[0.1, 1 / 3]] * 4)
        out["f32"] = np.array([0.1, 1, 2, 3], np.float32)
        out["u64"] = np.array([0, 2**63 - 1, 5, 6], np.uint64)
        out["u64_grid"] = np.full((4, 2, 2), 2**64 - 1, np.uint64)
    with h5py.File(ROOT / "odd-large.h5", "w") as out:
        out["labels"] = np.arange(3)
        out["ids"] = np.array([1, 2**63, 2**64 - 1], np.uint64)
    broken = ROOT / "odd-broken.h5"
    with h5py.File(broken, "w") as out:
        out["images"] = np.zeros((3, 4, 4, 3), np.uint8)
        out["labels"] = np.arange(3)
        out["weights"] = np.arange(3.0)
        head = h5py.h5o.get_info(out["weights"].id).addr
    content = bytearray(broken.read_bytes())
    content[head] = 0x7F  # the version of an object's header
    broken.write_bytes(content)
    with h5py.File(ROOT / "odd-links.h5", "w") as out:
        out["store/values"] = np.arange(3.0)
        out["labels"] = np.arange(3)
        out["soft"] = h5py.SoftLink("/store/values")
    for name, link in [("odd-dangling.h5", h5py.SoftLink("/nowhere")), ("odd-external.h5", h5py.ExternalLink("odd-links.h5", "/labels"))]:
        with h5py.File(ROOT / name, "w") as out:
            out["labels"] = np.arange(3)
            out["other"] = link
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "named.mdb")
        env = lmdb.open(path, subdir=False, max_dbs=3, map_size=1 << 20, lock=False)
        for name in ["train", "test"]:
            base = env.open_db(name.encode())
            with env.begin(db=base, write=True) as out:
                for i in range(3):
                    out.put(b"%03d.txt" % i, b"%s %d" % (name.encode(), i))
                    out.put(b"%03d.cls" % i, b"%d" % i)
        env.copy(path + ".copy", compact=True)
        env.close()
        shutil.copy(path + ".copy", ROOT / "odd-named.mdb")


def main():
    ROOT.mkdir(parents=True, exist_ok=True)
    listing = ROOT / "expected.json"
    expected = json.loads(listing.read_text()) if listing.exists() else {}
    for name in sys.argv[1:] or ["tar", "tfrecord", "lmdb", "hdf5"]:
        globals()[name + "_files"](expected)
    listing.write_text(json.dumps(expected, sort_keys=True) + "\n")
    size = sum(path.stat().st_size for path in ROOT.rglob("*") if path.is_file())
    print(f"{len(expected)} files, {size} bytes")


if __name__ == "__main__":
    main()
