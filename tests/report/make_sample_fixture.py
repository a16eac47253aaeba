#!/usr/bin/env python3
"""The numbers of a trace of ResNet-50 on a V100 that the sources of Kineto had as a sample, as a small table for a test.

    python tests/report/make_sample_fixture.py worker0.1623143566756.pt.trace.json.gz fixtures/resnet50.csv.gz

A row is: kind (o operator, r runtime call, k kernel, c copy, f fill), name, thread, start less that of the row before,
duration, External id, correlation, blocks per SM in thousandths, occupancy. Left out are operators that launch nothing
and lie in others, and names that no number depends on.
"""
import gzip
import json
import sys

NAMES = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.step")
PRODUCTS = ("aten::cudnn_convolution", "aten::cudnn_convolution_backward_input", "aten::addmm", "aten::mm",
            "aten::cudnn_convolution_backward_weight")


def main(source, target):
    spans = [e for e in json.load(gzip.open(source))["traceEvents"] if e.get("ph") == "X"]
    spans.sort(key=lambda e: (e["ts"], -e["dur"]))
    kinds = {"Operator": "o", "Runtime": "r", "Kernel": "k", "Memcpy": "c", "Memset": "f"}
    external = lambda e: e["args"].get("External id", e["args"].get("external id"))
    launched = {e["args"].get("correlation") for e in spans if e["cat"] in ("Kernel", "Memcpy", "Memset")}
    owners = {external(e) for e in spans if e["cat"] == "Runtime" and e["args"].get("correlation") in launched}
    ids, numbers, threads, ends, rows, last = {}, {}, {}, {}, [], spans[0]["ts"]
    for e in spans:
        kind, name, thread, args = kinds.get(e["cat"]), e["name"], e["tid"], e["args"]
        if kind is None:
            continue
        row = ["", 0, 0, 0, 0]
        if kind == "o":
            is_outer = e["ts"] + e["dur"] > ends.get(thread, 0)
            if not (name.startswith(NAMES[0]) or is_outer or external(e) in owners):
                continue
            if is_outer and not name.startswith(NAMES[0]):
                ends[thread] = e["ts"] + e["dur"]
            row[0] = name if name.startswith(NAMES) or name in PRODUCTS else ""
            row[1] = ids.setdefault(external(e), len(ids) + 1) if external(e) in owners else 0
        else:
            correlation = args.get("correlation")
            row[2] = numbers.setdefault(correlation, len(numbers) + 1) if correlation in launched else 0
            if kind == "r":
                row[1] = ids.get(external(e), 0)
        if kind == "k":
            row[3:] = [round(1000 * min(args["blocks per SM"], 2)), args["est. achieved occupancy %"]]
        place = threads.setdefault(thread, len(threads)) if kind in "or" else 0
        cells = [kind, row[0], place, e["ts"] - last, e["dur"], *row[1:]]
        rows.append(",".join(str(c) if c else "" for c in cells).rstrip(","))
        last = e["ts"]
    with open(target, "wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
        packed.write(("\n".join(rows) + "\n").encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
