"""Proves that every public header compiles alone.

Each header is the only include of its own translation unit. To make that affordable, a part of what a header reaches by its own
includes comes precompiled: it would be read anyway, so nothing is hidden. With clang that part is a header of torch, of the standard
library, or another header of ours, which is precompiled upon what it reaches in turn; with other compilers a header of torch. Which
headers are precompiled follows from how many others reach them. What compiled once is not compiled again until its text, or the text
of a header of ours that it reaches, has changed.

usage: check_headers.py ROOT CACHE JOBS COMPILER [FLAG...]
"""
import concurrent.futures
import hashlib
import re
import subprocess
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
# Seconds that clang 16 takes to read them. They decide what is worth precompiling, and nothing else.
TORCH = {"torch/nn/module.h": 16, "torch/types.h": 14, "ATen/ATen.h": 10, "ATen/core/Tensor.h": 3.3}
PLAIN = {"c10/core/Device.h": 0.75, "filesystem": 0.65, "chrono": 0.5, "memory": 0.5, "sstream": 0.4, "string": 0.3, "functional": 0.28}
OTHER = 0.4  # another header of torch's layers
LINE = 0.0004  # one line of ours
FIXED = 0.3  # a precompiled header, beside what is in it
SKIPPED = ("levin/pch.h", "levin/testing/", "levin/cli/", "levin/program/")


def closure(root, name, seen):
    """Adds the header and all it reaches: ours are read, the others only named."""
    if name in seen:
        return
    seen[name] = None
    path = root / name
    if name.startswith("levin/") and path.exists():
        seen[name] = path.read_text()
        for target in INCLUDE.findall(seen[name]):
            closure(root, target, seen)


def seconds(reached):
    """What a header with this closure takes, about, with nothing precompiled."""
    layers = sum(name.startswith("torch/nn/modules/") for name in reached)
    lines = sum(text.count("\n") for text in reached.values() if text)
    return max((TORCH | PLAIN).get(name, 0) for name in reached) + OTHER * layers + LINE * lines


def choose(candidates, work, cost):
    """The headers to precompile: NAME -> the one it is precompiled upon. candidates: NAME -> closure; work: the same."""
    upon = {}

    def best(reached, name):
        return max((c for c in upon if c != name and c in reached), key=cost.get, default=None)

    while True:
        bases = {name: best(reached, name) for name, reached in work.items()}
        saved = {}
        for name, reached in work.items():
            for other in reached:
                if other != name and other in candidates and other not in upon:
                    gain = cost[other] - cost.get(bases[name], 0)
                    if gain > 0:
                        saved[other] = saved.get(other, 0) + gain
        for name in saved:
            saved[name] -= FIXED + (cost[name] - cost.get(best(candidates[name], name), 0) if name not in work else 0)
        winner = max(saved, key=saved.get, default=None)
        if winner is None or saved[winner] <= 0:
            return {name: best(candidates[name], name) for name in upon}, bases
        upon[winner] = None


def main():
    root, cache, jobs, command = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    command += ["-I", str(root), "-x", "c++", "-fsyntax-only", "-w"]
    clang = "clang" in command[0]  # which alone can precompile one header upon another
    if clang:
        command.append("-fno-crash-diagnostics")
    cache.mkdir(parents=True, exist_ok=True)
    work, stamps = {}, {}
    headers = sorted(path.relative_to(root).as_posix() for path in (root / "levin").rglob("*.h"))
    headers = [name for name in headers if not name.startswith(SKIPPED)]
    for name in headers:
        reached = {}
        closure(root, name, reached)
        text = "".join(f"{key}\n{reached[key]}" for key in sorted(reached)) + "\n".join(command)
        stamp = cache / hashlib.sha256(text.encode()).hexdigest()
        if not stamp.exists():
            work[name], stamps[name] = reached, stamp

    candidates = {name: {name: None} for name in (TORCH | PLAIN if clang else TORCH)}
    if clang:
        candidates |= work
    upon, bases = choose(candidates, work, {name: seconds(reached) for name, reached in (candidates | work).items()})
    ready, failures = {}, []

    def includes(name):
        """Options that put the precompiled header NAME, or what it stands upon, before the source."""
        while name and name not in ready:
            name = upon[name]
        return ["-include", str(ready[name])] if name else []

    def include_twice(name):  # the guard works too
        return f'#include "{name}"\n#include "{name}"\n'

    def precompile(name):
        header = cache / (re.sub(r"\W", "_", name) + ".h")
        header.write_text(include_twice(name) if name in work else f"#include <{name}>\n")
        flags = [flag if flag != "c++" else "c++-header" for flag in command if flag != "-fsyntax-only"]
        if clang:  # its templates once, not in every header again
            flags.insert(1, "-fpch-instantiate-templates")
        result = subprocess.run([*flags, *includes(upon[name]), str(header), "-o", f"{header}.gch"], text=True, capture_output=True)
        if result.returncode == 0:
            ready[name] = header
            finish(name, result)
        elif name in work:
            compile_alone(name)
        else:
            finish(name, result)

    def compile_alone(name):
        base = bases[name]
        while True:
            result = subprocess.run([*command, *includes(base), "-"], input=include_twice(name), text=True, capture_output=True)
            if result.returncode == 0 or base is None:
                return finish(name, result)
            base = upon[base]  # clang 16 fails now and then on some that are precompiled upon many others

    def finish(name, result):
        if result.returncode == 0:
            if name in stamps:
                stamps[name].touch()
            return
        errors = [line for line in result.stderr.splitlines() if "error" in line]
        failures.append(f"{name}: {errors[0] if errors else result.stderr.strip()}")

    # What others wait for comes first.
    waiting = {name: upon[name] for name in upon} | {name: base for name, base in bases.items() if name not in upon}
    following = {}
    for name, base in waiting.items():
        following.setdefault(base, []).append(name)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = {}

        def start(base):
            for name in sorted(following.get(base, []), key=lambda each: -len(following.get(each, []))):
                running[pool.submit(precompile if name in upon else compile_alone, name)] = name

        start(None)
        while running:
            for task in concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED).done:
                task.result()
                name = running.pop(task)
                del waiting[name]
                start(name)
    failures += [f"{name}: waits for a header that waits for it" for name in waiting]
    for header in ready.values():
        Path(f"{header}.gch").unlink()
    for line in sorted(failures):
        print(line)
    print(f"headers: {len(headers)} in all, {len(work)} compiled now, {len(failures)} do not compile alone")
    return 1 if failures or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
