"""Writes the fixtures of the weight file tests with torch, numpy and plain Python.

    python make_weight_fixtures.py [FOLDER_WRITTEN_BY_THE_TEST]

With a folder (LEVIN_IO_KEEP=FOLDER io_test writes one) it also loads the .pth files that Levin wrote there, with
torch.load(weights_only=True), and compares them.
"""
import argparse
import collections
import io
import json
import pathlib
import pickle
import struct
import sys
import tarfile
import warnings
import zipfile

import numpy
import safetensors.torch
import torch

HERE = pathlib.Path(__file__).parent / "fixtures" / "weights"
TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint16", "uint32",
         "uint64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz",
         "float8_e5m2fnuz"]


def by_type():
    """One small tensor of every type; the test makes the same values by the same rule."""
    result = collections.OrderedDict()
    for name in TYPES:
        values = torch.arange(6) % 2 if name == "bool" else torch.arange(6)
        result[name] = values.to(torch.float32).to(getattr(torch, name)).reshape(2, 3)
    return result


def torch_files():
    torch.save(by_type(), HERE / "all_types.pt")
    base = torch.arange(12.0)
    matrix = base.view(3, 4)
    shared = collections.OrderedDict(base=base, transposed=matrix.t(), row=matrix[1], step=base[1::2], scalar=torch.tensor(2.5),
                                     empty=torch.zeros(0, 4), tied=base, repeated=torch.ones(1, 3).expand(2, 3))
    torch.save(shared, HERE / "shared.pt")
    net = torch.nn.Linear(2, 3)
    with torch.no_grad():
        net.weight.copy_(torch.arange(6.0).reshape(3, 2))
        net.bias.copy_(torch.arange(3.0))
    torch.save({"epoch": 3, "pytorch-lightning_version": "2.5", "lr": 0.5, "big": 2 ** 70, "none": None, "flags": (True, False),
                "names": {"b", "a"}, "raw": b"\x00\xff", "size": torch.Size([2, 3]), "dtype": torch.bfloat16,
                "device": torch.device("cpu"), "counts": collections.Counter({"a": 2}), "default": collections.defaultdict(list),
                "state_dict": collections.OrderedDict(("net." + k, v) for k, v in net.state_dict().items()),
                "parameter": net.weight, "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}}]}, HERE / "lightning.ckpt")
    torch.save(net.state_dict(), HERE / "linear.pth")
    torch.save(torch.arange(3), HERE / "bare.pt")
    torch.save(by_type(), HERE / "legacy.pt", _use_new_zipfile_serialization=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(net), HERE / "script.pt")
        programs()
        torch.save({"s": torch.eye(2).to_sparse()}, HERE / "sparse.pt")
        torch.save({"q": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, HERE / "quantized.pt")
    torch.save(net, HERE / "module.pt")
    rewrite("linear.pth", "deflated.pt", method=zipfile.ZIP_DEFLATED)
    rewrite("linear.pth", "big_endian.pt", change=lambda name, data: b"big" if name.endswith("byteorder") else
            b"".join(data[i:i + 4][::-1] for i in range(0, len(data), 4)) if "/data/" in name else data)
    shards = HERE / "sharded_bin"
    shards.mkdir(exist_ok=True)
    torch.save({"a": torch.arange(3.0)}, shards / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.arange(4.0)}, shards / "pytorch_model-00002-of-00002.bin")
    (shards / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {"total_size": 28}, "weight_map": {
        "a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}))


def programs():
    """TorchScript programs: a traced net, and one whose weights are packed, so that only its code could read them."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(collections.OrderedDict(conv=torch.nn.Conv2d(1, 2, 3), norm=torch.nn.BatchNorm2d(2),
                                                      act=torch.nn.ReLU(), flat=torch.nn.Flatten(), fc=torch.nn.Linear(8, 2)))
    torch.jit.save(torch.jit.trace(net.eval(), torch.ones(1, 1, 4, 4)), HERE / "traced.pt")
    packed = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(2, 2)), {torch.nn.Linear})
    torch.jit.save(torch.jit.script(packed), HERE / "packed.pt")


def small_net():
    net = torch.nn.Linear(2, 3)
    with torch.no_grad():
        net.weight.copy_(torch.arange(6.0).reshape(3, 2))
        net.bias.copy_(torch.arange(3.0))
    return net


def training_checkpoints():
    """What training scripts write: torchvision's references, pytorch/examples/imagenet (inside DDP), and DeepSpeed's keys."""
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 4])
    net(torch.ones(1, 2)).sum().backward()
    weights = collections.OrderedDict((k, v.clone()) for k, v in net.state_dict().items())
    optimizer.step()
    scheduler.step()
    args = argparse.Namespace(model="linear", lr=0.1, epochs=90, amp=False, resume=None, lr_steps=[30, 60], data_path="/data",
                              output_dir=pathlib.PurePosixPath("out/run"))
    reference = {"model": weights, "optimizer": optimizer.state_dict(), "lr_scheduler": scheduler.state_dict(), "epoch": 3,
                 "args": args}
    torch.save(reference, HERE / "reference.pth")
    torch.save(reference, HERE / "reference_legacy.pth", _use_new_zipfile_serialization=False)
    wrapped = collections.OrderedDict(("module." + k, v) for k, v in weights.items())
    torch.save({"epoch": 3, "arch": "linear", "state_dict": wrapped, "best_acc1": torch.tensor(71.5),
                "optimizer": optimizer.state_dict()}, HERE / "wrapped.pth.tar")
    torch.save(wrapped, HERE / "wrapped_legacy.pth", _use_new_zipfile_serialization=False)
    torch.save({"module": weights, "global_steps": 7, "loss": torch.tensor(0.5)}, HERE / "engine.pt")


def legacy_files():
    base = torch.arange(12.0)
    matrix = base.view(3, 4)
    shared = collections.OrderedDict(base=base, transposed=matrix.t(), row=matrix[1], tied=base, scalar=torch.tensor(2.5),
                                     empty=torch.zeros(0, 4), half=torch.arange(4).half(), other=torch.arange(3))
    torch.save(shared, HERE / "legacy_shared.pth", _use_new_zipfile_serialization=False)
    torch.save(shared, HERE / "legacy_protocol4.pth", pickle_protocol=4, _use_new_zipfile_serialization=False)
    # As Python 2 wrote it: strings are bytes, tensors are made by _rebuild_tensor.
    string = python2_string
    storage = (b"(" + string(b"storage") + b"ctorch\nFloatStorage\n" + string(b"94") + string(b"cpu") + b"K\x06NtQ")
    tensor = b"ctorch._utils\n_rebuild_tensor\n(" + storage + b"K\x00K\x03K\x02\x86K\x02K\x01\x86tR"
    whole = (b"\x80\x02ccollections\nOrderedDict\n]](" + string(b"weight") + tensor + b"ea\x85R.")
    head = pickle.dumps(0x1950a86a20f9469cfc6c, 2) + pickle.dumps(1001, 2)
    info = b"\x80\x02}(" + string(b"little_endian") + b"\x88" + string(b"protocol_version") + b"M\xe9\x03u."
    keys = b"\x80\x02]" + string(b"94") + b"a."
    data = struct.pack("<q", 6) + struct.pack("<6f", *range(6))
    (HERE / "legacy_python2.pth").write_bytes(head + info + whole + keys + data)
    assert torch.load(HERE / "legacy_python2.pth", weights_only=False)["weight"].equal(torch.arange(6.0).reshape(3, 2))
    # Before 0.1.10 it was a tar; only the names matter, as it is refused.
    with tarfile.open(HERE / "oldest.pth", "w", format=tarfile.GNU_FORMAT) as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            tar.addfile(tarfile.TarInfo(name))


def tied_safetensors():
    """safetensors.torch.save_model leaves one of the names of a tied tensor out, and says so in the metadata."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.arange(4.0).reshape(2, 2))
    net[1].weight = net[0].weight
    safetensors.torch.save_model(net, str(HERE / "save_model.safetensors"), metadata={"format": "pt"})


def rewrite(source, target, change=lambda name, data: data, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(HERE / source) as old, zipfile.ZipFile(HERE / target, "w", method) as new:
        for item in old.infolist():
            new.writestr(item.filename, change(item.filename, old.read(item.filename)))


def python2_string(text):
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text


def numpy_pickles():
    arrays = {"data": numpy.arange(12, dtype=numpy.uint8).reshape(3, 4), "labels": [6, 9, 4], "columns": numpy.asfortranarray(
        numpy.arange(6, dtype=numpy.float32).reshape(2, 3)), "big": numpy.arange(3, dtype=">i4"), "scalar": numpy.float64(2.5),
        "flags": numpy.array([True, False]), "empty": numpy.zeros((0, 3), numpy.int64), "complex": numpy.array([1 + 2j], ">c8")}
    for protocol in (2, 3, 4, 5):
        (HERE / f"numpy{protocol}.pkl").write_bytes(pickle.dumps(arrays, protocol))
    # What Python 2 wrote: the form of the CIFAR batches.
    pixels = bytes(range(256)) + bytes(range(44))
    body = (b"\x80\x02}q\x01(" + python2_string(b"batch_label") + python2_string(b"training batch 1 of 5") +
            python2_string(b"data") + b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85" +
            python2_string(b"b") + b"\x87Rq\x04(K\x01K\x03K\x64\x86cnumpy\ndtype\nq\x05" + python2_string(b"u1") +
            b"K\x00K\x01\x87Rq\x06(K\x03" + python2_string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" +
            python2_string(pixels) + b"tb" + python2_string(b"labels") + b"](K\x06K\x09K\x04eu.")
    (HERE / "cifar_like.pkl").write_bytes(body)
    loaded = pickle.loads(body, encoding="bytes")
    assert loaded[b"data"].shape == (3, 100) and loaded[b"labels"] == [6, 9, 4]
    (HERE / "objects.pkl").write_bytes(pickle.dumps(numpy.array([{}], dtype=object), 2))
    (HERE / "namespace.pkl").write_bytes(pickle.dumps({"args": argparse.Namespace(lr=0.1, name="a")}, 2))
    (HERE / "system.pkl").write_bytes(b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.")


def check(folder):
    for name, expected in {"written_types.pth": by_type()}.items():
        loaded = torch.load(folder / name, weights_only=True)
        assert type(loaded) is collections.OrderedDict and list(loaded) == list(expected), name
        for key, value in expected.items():
            assert loaded[key].dtype == value.dtype and loaded[key].shape == value.shape, key
            assert bytes(loaded[key].contiguous().view(torch.uint8).flatten().tolist()) == bytes(
                value.contiguous().view(torch.uint8).flatten().tolist()), key
    tree = torch.load(folder / "written_tree.pth", weights_only=True)
    assert tree["whole"].equal(torch.arange(12.0).view(3, 4)) and tree["column"].equal(torch.arange(12.0).view(3, 4)[:, 1])
    assert tree["whole"].data_ptr() + 4 == tree["column"].data_ptr() and tree["column"].stride() == (4,)
    assert tree["tied"].data_ptr() == tree["whole"].data_ptr()
    assert tree["nested"] == {"flag": True, "number": -5, "wide": 1 << 40, "real": 0.1, "text": "ü", "list": [1, 2], "none": None}
    part = torch.load(folder / "written_tree.pth", weights_only=True, mmap=True)["part"]
    assert part.equal(torch.arange(100.0)[10:12]) and part.untyped_storage().nbytes() == 8
    print("what Levin wrote is what torch reads")


def main():
    if len(sys.argv) > 1:
        return check(pathlib.Path(sys.argv[1]))
    HERE.mkdir(parents=True, exist_ok=True)
    torch_files()
    training_checkpoints()
    legacy_files()
    tied_safetensors()
    numpy_pickles()


if __name__ == "__main__":
    main()
