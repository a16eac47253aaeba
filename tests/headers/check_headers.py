"""Proves that every public header compiles alone.

Each header is the only include of its own translation unit. To make that affordable, the heaviest torch header that a header
reaches by its own includes comes precompiled: it would be read anyway, so nothing is hidden. What compiled once is not
compiled again until its text, or the text of a header of ours that it reaches, has changed.

usage: check_headers.py ROOT CACHE JOBS COMPILER [FLAG...]
"""
import concurrent.futures
import hashlib
import re
import subprocess
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
# Heaviest first.
PRECOMPILED = ["torch/nn/module.h", "torch/types.h", "ATen/ATen.h", "ATen/core/Tensor.h"]
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


def main():
    root, cache, jobs, command = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    command += ["-I", str(root), "-x", "c++", "-fsyntax-only", "-w"]
    cache.mkdir(parents=True, exist_ok=True)
    work = []
    headers = sorted(path.relative_to(root).as_posix() for path in (root / "levin").rglob("*.h"))
    headers = [name for name in headers if not name.startswith(SKIPPED)]
    for name in headers:
        reached = {}
        closure(root, name, reached)
        text = "".join(f"{key}\n{reached[key]}" for key in sorted(reached)) + "\n".join(command)
        stamp = cache / hashlib.sha256(text.encode()).hexdigest()
        if not stamp.exists():
            work.append((name, next((heavy for heavy in PRECOMPILED if heavy in reached), None), stamp))

    needed = {heavy for _, heavy, _ in work if heavy}
    # A precompiled header pays from the second use on.
    needed = sorted(h for h in needed if sum(heavy == h for _, heavy, _ in work) > 1)

    def precompile(heavy):
        header = cache / (re.sub(r"\W", "_", heavy) + ".h")
        header.write_text(f"#include <{heavy}>\n")
        flags = [flag if flag != "c++" else "c++-header" for flag in command if flag != "-fsyntax-only"]
        if "clang" in command[0]:  # its templates once, not in every header again
            flags.insert(1, "-fpch-instantiate-templates")
        subprocess.run([*flags, str(header), "-o", f"{header}.gch"], check=True)
        return heavy, header

    def compile_alone(item):
        name, heavy, stamp = item
        extra = ["-include", str(ready[heavy])] if heavy in ready else []
        source = f'#include "{name}"\n#include "{name}"\n'  # twice: the guard works too
        result = subprocess.run([*command, *extra, "-"], input=source, text=True, capture_output=True)
        if result.returncode == 0:
            stamp.touch()
            return None
        errors = [line for line in result.stderr.splitlines() if "error" in line]
        return f"{name}: {errors[0] if errors else result.stderr.strip()}"

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        ready = dict(pool.map(precompile, needed))
        failures = [line for line in pool.map(compile_alone, work) if line]
    for header in ready.values():
        Path(f"{header}.gch").unlink()
    for line in failures:
        print(line)
    print(f"headers: {len(headers)} in all, {len(work)} compiled now, {len(failures)} do not compile alone")
    return 1 if failures or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
