"""Levin, the training stack for C++ on LibTorch: the program `levin` and what CMake's find_package(Levin) needs.

LibTorch is that of the package `torch` in the same environment.
"""
import importlib.util
import os
import re
import sys

PREFIX = os.path.dirname(os.path.abspath(__file__))
TORCH_VERSION = "@TORCH_VERSION@"


def _torch():
    """The folder of the torch package, found without importing it, which takes seconds."""
    beside = os.path.join(os.path.dirname(PREFIX), "torch")
    if os.path.exists(os.path.join(beside, "lib", "libtorch_cpu.so")):
        return beside
    spec = importlib.util.find_spec("torch")
    if spec is None:
        sys.exit(f"levin: torch {TORCH_VERSION} is not in this environment: pip install torch=={TORCH_VERSION}")
    return spec.submodule_search_locations[0]


def main():
    torch = os.environ.get("LEVIN_TORCH") or _torch()
    if not os.path.exists(os.path.join(torch, "lib", "libtorch_cpu.so")):
        torch = os.path.join(torch, "torch")  # a site-packages folder
    version = re.search(r"__version__ = '([^'+]*)", _read(os.path.join(torch, "version.py")))
    if version and version[1] != TORCH_VERSION:
        sys.exit(f"levin: torch {version[1]} is in {torch}, but this Levin needs exactly {TORCH_VERSION}")
    if os.path.dirname(torch) != os.path.dirname(PREFIX):
        paths = [os.path.join(torch, "lib"), os.environ.get("LD_LIBRARY_PATH")]
        os.environ["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    program = os.path.join(PREFIX, "lib", "levin", "levin")
    os.execv(program, [program, *sys.argv[1:]])


def _read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
