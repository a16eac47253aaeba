#!/usr/bin/env python3
"""From a slow ResNet-50 to a fast one, one option at a time (docs/profiling.md).

    bench/resnet_study.py build/gpu/bin/levin --out study      # about a minute and a half on an H200
    bench/resnet_study.py build/bin/levin --out study --cpu    # tiny, to try the script: changes that need a GPU are left out

Each run trains a few steps with the recipe `resnet50_images` on JPEG files that the first one writes, records some of
them, and asks `levin report` what to change. The change of the next run must be among its recommendations, and the last
step must take at most a fifth of the first one's time for an image. OUT gets report.html, report.json and the trace of
each run, study.json and a page that compares all (compare.html).
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time

# What each run changes: name, option, value, the word that the recommendation before it must name, needs a GPU.
START = {"data.num_workers": "0", "data.pin_memory": "false", "trainer.precision": "32-true", "model.channels_last": "false",
         "data.batch_size": "16", "trainer.compile": "false"}
CHANGES = [
    ("workers", "data.num_workers", "auto", "num_workers", False),
    ("pinned", "data.pin_memory", "true", "pin_memory", True),
    ("amp", "trainer.precision", "bf16-mixed", "precision", True),
    ("channels_last", "model.channels_last", "true", "channels_last", True),
    ("batch", "data.batch_size", "64", "batch_size", True),
    ("compiled", "trainer.compile", "true", "compile", True),
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("levin", help="the program")
    parser.add_argument("--out", default="study", help="folder of what is left at the end")
    parser.add_argument("--work", default="/tmp/levin_study", help="folder of images and runs")
    parser.add_argument("--cpu", action="store_true", help="tiny, on the CPU; nothing is required of the times")
    parser.add_argument("--batch", default="64", help="the larger batch size")
    return parser.parse_args()


def run(args, name, options):
    """Trains and records one run; gives its folder and the time of the whole command."""
    root = os.path.join(args.work, name)
    shutil.rmtree(root, ignore_errors=True)
    words = [args.levin, "fit", "resnet50_images", "--data.folder", os.path.join(args.work, "images"),
             "--data.drawn", "100" if args.cpu else "1600", "--trainer.default_root_dir", root,
             "--trainer.max_steps", "8" if args.cpu else "18", "--trainer.enable_checkpointing", "false",
             "--trainer.enable_progress_bar", "false", "--trainer.profiler", "pytorch",
             "--trainer.profiler.schedule.skip_first", "2" if args.cpu else "8",
             "--trainer.profiler.schedule.active", "3" if args.cpu else "5"]
    if args.cpu:
        words += ["--trainer.accelerator", "cpu", "--model.name", "resnet18", "--data.image_size", "64"]
    for option, value in options.items():
        words += ["--" + option, value]
    begin = time.time()
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name}: {' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return root, time.time() - begin


def report(args, root, name):
    """`levin report` of a run, its page and its trace in OUT."""
    out = os.path.join(args.out, name)
    os.makedirs(out, exist_ok=True)
    text = subprocess.run([args.levin, "report", root, "--json"], check=True, capture_output=True, text=True).stdout
    for folder, _, files in os.walk(root):
        for file in files:
            if file.endswith(".pt.trace.json.gz") or file == "report.html":
                shutil.copy(os.path.join(folder, file), os.path.join(out, file))
    trace = json.loads(text)["traces"][0]
    kept = {key: trace[key] for key in ("overview", "gpu_summary", "tensor_cores", "recommendations", "idle", "what_if", "facts",
                                        "warnings")}
    kept["kernels"] = trace["kernels"][:40]
    with open(os.path.join(out, "report.json"), "w") as file:
        json.dump(kept, file, indent=1)
    return trace


def row_of(name, options, trace, seconds):
    gpu = (trace["gpu_summary"] or [{}])[0]
    step = trace["overview"]["average_us"] / 1e3
    return {"run": name, "options": options, "step_ms": step, "images_per_s": int(options["data.batch_size"]) / step * 1e3,
            "utilization": gpu.get("utilization_percent"), "sm_efficiency": gpu.get("sm_efficiency_percent"),
            "occupancy": gpu.get("achieved_occupancy_percent"), "tensor_cores": gpu.get("tensor_core_time_percent"),
            "recommendations": trace["recommendations"], "seconds": seconds}


def number(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def table(rows):
    print("| run | option | step ms | images/s | utilization | est. SM eff. | occupancy | tensor cores | first recommendation |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        first = row["recommendations"][0] if row["recommendations"] else {"title": "none", "cost_ms": None}
        cost = "" if first["cost_ms"] is None else f" ({first['cost_ms']:.2f} ms)"
        print(f"| {row['run']} | `{row['change']}` | {row['step_ms']:.2f} | {row['images_per_s']:.0f} | {number(row['utilization'])} | "
              f"{number(row['sm_efficiency'])} | {number(row['occupancy'])} | {number(row['tensor_cores'])} | {first['title']}{cost} |")


def check(rows, wanted):
    """What is not as it should be, in lines."""
    wrong = []
    for row, word in zip(rows, wanted):
        if not any(word in told["option"] for told in row["recommendations"]):
            told = ", ".join(told["id"] for told in row["recommendations"]) or "nothing"
            wrong.append(f"{row['run']}: the report should name {word}; it names {told}")
    speedup = rows[-1]["images_per_s"] / rows[0]["images_per_s"]
    if speedup < 5:
        wrong.append(f"the last step is {speedup:.2f} times as fast as the first for an image, not 5")
    last = rows[-1]
    for key in ("occupancy", "tensor_cores", "sm_efficiency"):
        if not last[key]:
            wrong.append(f"{last['run']}: no {key}")
    return wrong


def main():
    args = arguments()
    os.makedirs(args.work, exist_ok=True)
    os.makedirs(args.out, exist_ok=True)
    options = dict(START)
    if args.cpu:
        options["data.batch_size"] = "4"
    changes = [("first", None, None, None, False)]
    changes += [(*change[:2], args.batch if change[0] == "batch" else change[2], *change[3:])
                for change in CHANGES if not (args.cpu and change[4])]
    rows, roots = [], []
    for name, option, value, _, _ in changes:
        if option:
            options[option] = value
        root, seconds = run(args, name, options)
        rows.append(row_of(name, dict(options), report(args, root, name), seconds))
        rows[-1]["change"] = f"--{option} {value}" if option else "the defaults of a first try"
        roots.append(root)
    # For the views that need more than times: roofline, memory, operators by shape.
    options["trainer.compile"] = "false"
    details = {**options, "trainer.profiler.record_shapes": "true", "trainer.profiler.profile_memory": "true"}
    report(args, run(args, "details", details)[0], "details")
    page = os.path.join(args.out, "compare.html")
    subprocess.run([args.levin, "report", *roots, "--html", page], check=True, capture_output=True)
    with open(os.path.join(args.out, "study.json"), "w") as file:
        json.dump(rows, file, indent=1)
    table(rows)
    for row in rows:
        print(f"{row['run']}: {row['seconds']:.1f} s; " + "; ".join(
            f"{told['id']} {number(told['cost_ms'], 2)} ms" for told in row["recommendations"]))
    print(f"{rows[-1]['images_per_s'] / rows[0]['images_per_s']:.2f} times as many images a second as at first")
    wrong = [] if args.cpu else check(rows, [change[3] for change in changes[1:]])
    print("\n".join("WRONG " + line for line in wrong) or "as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
