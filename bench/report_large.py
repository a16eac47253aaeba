#!/usr/bin/env python3
"""How long `levin report` takes for a large trace, and how much memory.

    bench/report_large.py build/bin/levin [--gigabytes 1] [--folder /tmp/levin_large] [--keep]

Writes a trace of steps as Kineto does (operators in units, launches, kernels with their properties, allocations), asks for the page,
opens it in Chromium where there is one, and prints time, peak memory and how smooth the page is. Fails over 40 seconds, 1 GB, or 3
seconds until the page is painted.
"""
import argparse
import os
import resource
import shutil
import subprocess
import sys
import time

LAYERS = 150
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150754820096, "computeMajor": 9, "computeMinor": 0, "numSms": 132}
  ],
  "displayTimeUnit": "ms",
  "traceEvents": [
"""


def span(category, name, start, duration, thread, arguments, process="100"):
    """A template: @T5@ is 5 microseconds after the step begins, @C5@ the number 5 of it."""
    return (f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {process}, "tid": {thread},\n'
            f'    "ts": @T{start}@.125, "dur": {duration}.250,\n    "args": {{\n      {arguments}\n    }}\n  }},\n')


def layer(number, at, backward):
    """Three operators with their launches, kernels and an allocation; 60 microseconds."""
    parts = []
    for i, (op, kernel) in enumerate((("aten::addmm", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN"),
                                      ("aten::native_layer_norm", "void at::native::vectorized_layer_norm_kernel<float, float>"),
                                      ("aten::gelu", "void at::native::vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>"))):
        start, number_of = at + 20 * i, 3 * number + i
        sequence = f'"Sequence number": {number_of}, "Fwd thread id": {1 if backward else 0}, '
        parts.append(span("cpu_op", op, start, 18, 101, f'"External id": @C{number_of}@, {sequence}'
                          f'"Input Dims": [[1024], [8192, 1024], [1024, 1024]], "Input type": ["float", "float", "float"]'))
        parts.append(span("cuda_runtime", "cudaLaunchKernel", start + 4, 5, 101,
                          f'"External id": @C{number_of}@, "cbid": 211, "correlation": @C{number_of}@'))
        parts.append(span("kernel", kernel, start + 12, 17, 7,
                          f'"External id": @C{number_of}@, "queued": 0, "device": 0, "context": 1,\n      "stream": 7, '
                          f'"correlation": @C{number_of}@,\n      "registers per thread": 168,\n      "shared memory": 213016,\n      '
                          f'"blocks per SM": 1.939394,\n      "warps per SM": 23.272728,\n      "grid": [256, 1, 1],\n      '
                          f'"block": [384, 1, 1],\n      "est. achieved occupancy %": 36', "0"))
        parts.append(f'  {{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n    "pid": 100, "tid": 101,\n'
                     f'    "ts": @T{start + 2}@.500,\n    "args": {{\n      "Total Allocated": 8589934592, "Total Reserved": 9663676416, '
                     f'"Bytes": {4194304 if not backward else -4194304}, "Addr": {140000000000000 + 4194304 * number_of}, '
                     f'"Device Id": 0, "Device Type": 1\n    }}\n  }},\n')
    return "".join(parts)


def template():
    text, at = [], 100
    for phase in (False, True):
        for number in range(LAYERS):
            place = LAYERS - 1 - number if phase else number
            if not phase:
                text.append(span("python_function", f"nn.Module: Block_{number}", at, 60, 101, f'"Unit": "encoder.layers.{number}"'))
            text.append(layer(place + (LAYERS if phase else 0), at, phase))
            at += 60
    return "".join(text), at + 100


def write(path, gigabytes):
    text, length = template()
    # Numbers of the template become those of a step: pieces of text with a number between each two.
    pieces = text.split("@")
    kinds = [(piece[0], int(piece[1:])) if i % 2 else None for i, piece in enumerate(pieces)]
    step = size = 0
    with open(path, "w") as file:
        file.write(HEAD)
        while size < gigabytes * 1e9:
            time_of, count = 1000000 + step * length, step * 6 * LAYERS + 1
            out = [piece if kind is None else str((time_of if kind[0] == "T" else count) + kind[1]) for piece, kind in zip(pieces, kinds)]
            out.append(span("user_annotation", f"ProfilerStep#{step}", 0, length - 10, 101, f'"External id": {10**8 + step}')
                       .replace("@T0@", str(time_of)))
            size += file.write("".join(out))
            step += 1
        file.write('  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n    "pid": "", "tid": "", "ts": 0\n  }\n  ],\n'
                   '  "traceName": "large"\n}\n')
    return step


FRAMES = """(async () => {
  const canvas = document.querySelector('canvas'), times = [];
  let last = performance.now();
  for (let i = 0; i < 40; ++i) {
    canvas?.dispatchEvent(new WheelEvent('wheel', {deltaY: i < 20 ? -60 : 60, ctrlKey: true, bubbles: true, cancelable: true,
                                                   clientX: 500, clientY: 300}));
    window.scrollBy(0, 30);
    await new Promise(requestAnimationFrame);
    times.push(-last + (last = performance.now()));
  }
  return times.sort((a, b) => a - b);
})()"""


def open_page(page):
    """Seconds until the timeline is painted, and the milliseconds between frames while it is zoomed and scrolled, sorted."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "report"))
    import browser

    program = browser.find()
    if not program:
        return None
    window = browser.Browser(program)
    try:
        return window.open("file://" + os.path.abspath(page) + "#trace"), window.evaluate(FRAMES)
    finally:
        window.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("levin")
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--folder", default="/tmp/levin_large")
    parser.add_argument("--keep", action="store_true", help="leave trace and page")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    trace, page = os.path.join(args.folder, "large.pt.trace.json"), os.path.join(args.folder, "report.html")
    steps = write(trace, args.gigabytes)
    start = time.time()
    subprocess.run([args.levin, "report", trace, "--html", page], check=True, capture_output=True)
    seconds = time.time() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{os.path.getsize(trace) / 1e9:.2f} GB, {steps} steps: {seconds:.1f} s ({used.ru_utime + used.ru_stime:.1f} s of a core), "
          f"{used.ru_maxrss / 1e6:.2f} GB of memory, a page of {os.path.getsize(page) / 1e6:.1f} MB; load {os.getloadavg()[0]:.1f}")
    opened = open_page(page)
    if opened:
        print(f"opens in {opened[0]:.2f} s in a headless browser; frames of {opened[1][20]:.0f} ms, at most {opened[1][-1]:.0f} ms")
    if not args.keep:
        shutil.rmtree(args.folder)
    slow = seconds > 40 or used.ru_maxrss > 1e6 or (opened and opened[0] > 3)
    return 1 if args.gigabytes <= 1 and slow else 0


if __name__ == "__main__":
    sys.exit(main())
