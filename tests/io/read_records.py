"""Reads files of records that Levin wrote, with the tools that others read such files with, and compares.

    python read_records.py FOLDER

FOLDER/files.json: {file: [{"key", "fields": {name: value}}]}, as in make_records_fixtures.py. Prints what was compared; exit code 1 and a
line on a difference. Uses webdataset, GNU tar, tfrecord, lmdb and h5py; tensorflow in a process of its own where it is installed.
"""
import glob
import io
import json
import pathlib
import subprocess
import sys

import numpy as np

CLASSES = ["cat", "dog"]


def fail(line):
    sys.exit(f"read_records: {line}")


def value_of(field):
    if "bytes" in field:
        return bytes.fromhex(field["bytes"])
    if "data" in field:
        return np.frombuffer(bytes.fromhex(field["data"]), field["dtype"]).reshape(field["shape"])
    return field["ints"] if "ints" in field else [float(np.float32(v)) for v in field["floats"]]


def same(found, wanted):
    if isinstance(wanted, np.ndarray):
        return isinstance(found, np.ndarray) and found.dtype == wanted.dtype and np.array_equal(found, wanted)
    if isinstance(wanted, list) and wanted and isinstance(wanted[0], float):
        return len(found) == len(wanted) and all(np.float32(a) == np.float32(b) for a, b in zip(found, wanted))
    return found == wanted


def member(name, value):
    """Extension and decoded content, as a member of a tar or of an LMDB database."""
    if isinstance(value, np.ndarray):
        return name + ".npy", lambda data: np.load(io.BytesIO(data))
    if isinstance(value, bytes):
        return {"image": "png", "text": "txt"}.get(name, name), lambda data: data
    if name == "label":
        return "cls", lambda data: [int(data)]
    return name + ".json", lambda data: json.loads(data) if data.startswith(b"[") else [json.loads(data)]


def check_members(where, wanted, members):
    """`members`: extension -> bytes."""
    fields = {name: value_of(field) for name, field in wanted["fields"].items()}
    if len(members) != len(fields):
        fail(f"{where}: members {sorted(members)}, fields {sorted(fields)}")
    for name, value in fields.items():
        extension, decode = member(name, value)
        if extension not in members or not same(decode(members[extension]), value):
            fail(f"{where}: {name} differs")


def check_tar(path, records):
    import webdataset as wds

    paths = sorted(glob.glob(str(path).replace("%06d", "*")))
    samples = list(wds.WebDataset(paths, shardshuffle=False))
    if [s["__key__"] for s in samples] != [r["key"] for r in records]:
        fail(f"{path}: keys {[s['__key__'] for s in samples]}")
    for sample, record in zip(samples, records):
        check_members(f"{path}: {record['key']}", record, {k: v for k, v in sample.items() if not k.startswith("__")})
    for one in paths:
        listed = subprocess.run(["tar", "--list", "--verbose", "--file", one], capture_output=True, text=True)
        if listed.returncode or listed.stderr or "-r--r--r-- bigdata/bigdata" not in listed.stdout:
            fail(f"{one}: tar says {listed.stderr or listed.stdout}")


def features_of(record):
    features = {"__key__": record["key"].encode()}
    for name, field in record["fields"].items():
        value = value_of(field)
        if isinstance(value, np.ndarray):
            features |= {name + "/raw": value.tobytes(), name + "/shape": list(value.shape), name + "/dtype": str(value.dtype).encode()}
        else:
            features[{"image": "image/encoded", "label": "image/class/label"}.get(name, name)] = value
            if name == "image":
                features["image/format"] = b"PNG"
    return features


def check_tfrecord(path, records):
    from tfrecord import example_pb2, tfrecord_iterator

    found = []
    for data in tfrecord_iterator(str(path)):
        example = example_pb2.Example.FromString(bytes(data))
        if example.SerializeToString(deterministic=True) != bytes(data):
            fail(f"{path}: protobuf writes other bytes")
        features = {}
        for name, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            values = list(getattr(feature, kind).value)
            features[name] = values[0] if kind == "bytes_list" else values
        found.append(features)
    wanted = [features_of(record) for record in records]
    if len(found) != len(wanted):
        fail(f"{path}: {len(found)} records")
    for a, b in zip(found, wanted):
        if a.keys() != b.keys() or not all(same(a[name], b[name]) for name in b):
            fail(f"{path}: {b['__key__']} differs: {sorted(a)} and {sorted(b)}")
    labels = path.with_suffix(".labels.txt").read_text()
    if labels != "".join(f"{i}:{name}\n" for i, name in enumerate(CLASSES)):
        fail(f"{path}: labels {labels!r}")


def check_lmdb(path, records):
    import lmdb

    with lmdb.open(str(path), subdir=path.is_dir(), readonly=True, lock=False) as env, env.begin() as txn:
        if txn.get(b"__len__") != str(len(records)).encode() or txn.get(b"__classes__").decode().split() != CLASSES:
            fail(f"{path}: __len__ {txn.get(b'__len__')}, __classes__ {txn.get(b'__classes__')}")
        entries = {key.decode(): value for key, value in txn.cursor()}
    for record in records:
        members = {key[len(record["key"]) + 1:]: value for key, value in entries.items() if key.startswith(record["key"] + ".")}
        check_members(f"{path}: {record['key']}", record, members)


def check_hdf5(path, records):
    import h5py

    with h5py.File(path) as file:
        if [key.decode() for key in file["keys"]] != [r["key"] for r in records]:
            fail(f"{path}: keys")
        if [name.decode() for name in file["classes"]] != CLASSES:
            fail(f"{path}: classes")
        for name in records[0]["fields"]:
            data = file[{"image": "images", "label": "labels"}.get(name, name)]
            if data.shape[0] != len(records):
                fail(f"{path}: {name} has {data.shape[0]} rows")
            for row, record in zip(data, records):
                value = value_of(record["fields"][name])
                if isinstance(value, bytes):
                    row = row if isinstance(row, bytes) else row.tobytes()
                elif isinstance(value, list):
                    row = np.atleast_1d(row).tolist()
                if not same(row, value):
                    fail(f"{path}: {name} of {record['key']} differs")


def check_tensorflow(path, records):
    import tensorflow as tf

    data = list(tf.data.TFRecordDataset(str(path)))
    if len(data) != len(records):
        fail(f"{path}: TensorFlow reads {len(data)} records")
    for one, record in zip(data, records):
        feature = tf.train.Example.FromString(one.numpy()).features.feature
        for name, value in features_of(record).items():
            list_of = getattr(feature[name], feature[name].WhichOneof("kind")).value
            if not same(list_of[0] if isinstance(value, bytes) else list(list_of), value):
                fail(f"{path}: {name} of {record['key']} differs for TensorFlow")


def main():
    folder = pathlib.Path(sys.argv[1])
    files = json.loads((folder / "files.json").read_text())
    if "tensorflow" in sys.argv:
        for name in files:
            if name.endswith(".tfrecord"):
                check_tensorflow(folder / name, files[name])
        return
    checks = {".tar": check_tar, ".tfrecord": check_tfrecord, ".lmdb": check_lmdb, ".mdb": check_lmdb, ".h5": check_hdf5}
    for name, records in files.items():
        checks[pathlib.Path(name).suffix](folder / name, records)
    peers = "webdataset, tar, tfrecord, lmdb, h5py"
    if subprocess.run([sys.executable, "-c", "import tensorflow"], capture_output=True).returncode == 0:
        ran = subprocess.run([sys.executable, __file__, str(folder), "tensorflow"], capture_output=True, text=True)
        if ran.returncode:
            fail(ran.stderr)
        peers += ", tensorflow"
    print(f"{len(files)} files, {sum(map(len, files.values()))} records, read by {peers}: equal")


if __name__ == "__main__":
    main()
