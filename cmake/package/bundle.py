#!/usr/bin/env python3
"""Copies the shared libraries of the distribution that an installed Levin uses into PREFIX/lib/levin, and lets it find them there.

Left to the system: the C and C++ standard libraries. Left to LibTorch: what comes from its folder. A copy has a hash in its name, so that a
program which also uses the system's own gets both. The licence of each goes to PREFIX/share/doc/levin/licenses where Debian has it.

usage: bundle.py PREFIX TORCH
"""
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+|cuda|cudart|nvidia-ml))\.so\.\d+$")


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode:
        raise SystemExit(f"bundle: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def libraries(file, torch):
    """{name: path} of what a file needs, directly or not, other than the system's and LibTorch's."""
    text = run("ldd", file, env={**os.environ, "LD_LIBRARY_PATH": f"{torch}/lib"})
    found = dict(re.findall(r"^\s*(\S+) => (\S+) \(", text, re.MULTILINE))
    own = torch.resolve().parent
    return {name: Path(path).resolve() for name, path in found.items()
            if not SYSTEM.match(name) and own not in Path(path).resolve().parents and not name.startswith("liblevin.")}


def needed(file):
    return run("patchelf", "--print-needed", file).split()


def closure(file, everything):
    """The names of `everything` that a file reaches without LibTorch in between: its own libraries are in its folder."""
    names, todo = set(), needed(file)
    while todo:
        name = todo.pop()
        if name in everything and name not in names:
            names.add(name)
            todo += needed(everything[name])
    return names


def copy_licence(path, folder):
    if not shutil.which("dpkg-query"):
        return
    # A file may be known by its name before /lib became /usr/lib.
    for name in (str(path), str(path).removeprefix("/usr")):
        owner = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
        if owner.returncode == 0:
            package = owner.stdout.split(":")[0]
            text = Path(f"/usr/share/doc/{package}/copyright")
            if text.exists():
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy(text, folder / package)
            return


def bundle(prefix, torch):
    library = next(prefix.glob("lib/liblevin.so.*.*.*"))
    everything = libraries(library, torch)
    wanted = {name: everything[name] for name in sorted(closure(library, everything))}
    private = prefix / "lib/levin"
    renamed = {}
    for name, path in wanted.items():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        stem, rest = name.split(".so", 1)
        renamed[name] = f"{stem}-{digest}.so{rest}"
    for name, path in wanted.items():
        copy = private / renamed[name]
        shutil.copy(path, copy)
        copy.chmod(0o644)
        # One change at a time: patchelf 0.14 mixes up the names of several.
        run("patchelf", "--set-soname", renamed[name], copy)
        replace(copy, renamed)
        run("patchelf", "--set-rpath", "$ORIGIN", copy)
        copy_licence(path, prefix / "share/doc/levin/licenses")
    replace(library, renamed)
    return renamed


def replace(file, renamed):
    """Lets a file ask for the copies, and makes sure that it does."""
    pairs = [(name, renamed[name]) for name in needed(file) if name in renamed]
    if pairs:
        run("patchelf", *(word for pair in pairs for word in ("--replace-needed", *pair)), file)
    if not {new for _, new in pairs} <= set(needed(file)) or any(old in needed(file) for old, _ in pairs):
        raise SystemExit(f"bundle: patchelf has not renamed what {file} needs")


if __name__ == "__main__":
    names = bundle(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"bundle: {len(names)} libraries in {sys.argv[1]}/lib/levin")
