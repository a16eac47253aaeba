#!/usr/bin/env python3
"""Writes a Python wheel of a built Levin: `pip install` then gives the program and what find_package(Levin) needs, and compiles nothing.

The wheel depends on the torch package and finds LibTorch in it. Libraries of the distribution come with it (bundle.py), and its tag says
the oldest glibc that everything in it runs with.

usage: wheel.py BUILD OUT
"""
import base64
import csv
import hashlib
import io
import platform
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import bundle

HERE = Path(__file__).resolve().parent
# The newest GLIBCXX that a distribution with that glibc is sure to have, as the manylinux policies say.
GLIBCXX = [((2, 28), 24), ((2, 31), 28), ((2, 34), 29), ((2, 35), 30), ((2, 38), 31), ((2, 39), 33)]
METADATA = """Metadata-Version: 2.1
Name: levin
Version: {version}
Summary: {summary}
License: Apache-2.0
Classifier: Programming Language :: C++
Classifier: Operating System :: POSIX :: Linux
Requires-Python: >=3.9
Requires-Dist: torch=={torch}
Description-Content-Type: text/markdown

Levin is a training stack for C++ on LibTorch. This package has the program `levin` and the C++ library:

    levin --help
    levin new app
    cmake -S app -B app/build -DCMAKE_PREFIX_PATH=$(levin --cmake-prefix)
"""


def cache_value(build, name):
    found = re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    return found[1] if found else ""


def config_value(prefix, pattern):
    return next(m[1] for file in sorted(prefix.glob("lib/cmake/Levin/*.cmake")) if (m := re.search(pattern, file.read_text())))


def is_elf(path):
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def glibc(files):
    """The oldest glibc, as (major, minor), that has every symbol these files need."""
    needs = "".join(bundle.run("readelf", "-W", "--version-info", file) for file in files)
    oldest = max((int(a), int(b)) for a, b in re.findall(r"\bGLIBC_(\d+)\.(\d+)", needs))
    newest = max([int(n) for n in re.findall(r"\bGLIBCXX_3\.4\.(\d+)", needs)], default=0)
    return max(oldest, next((version for version, has in GLIBCXX if has >= newest), (2, 40)))


def set_run_paths(prefix):
    """From lib/ and lib/levin/ of site-packages/levin to site-packages/torch and what lies beside it."""
    for file, own, up in ((next(prefix.glob("lib/liblevin.so.*")), "$ORIGIN/levin", "$ORIGIN/../.."),
                          (prefix / "lib/levin/levin", "$ORIGIN/..", "$ORIGIN/../../..")):
        bundle.run("patchelf", "--set-rpath", f"{own}:{up}/torch/lib:{up}/nvidia/cu13/lib", file)


def drop_links(prefix):
    """A wheel has no symbolic links: one name of the library is left, the one that programs ask for."""
    real = next(file for file in prefix.glob("lib/liblevin.so.*") if not file.is_symlink())
    soname = bundle.run("patchelf", "--print-soname", real).strip()
    for file in prefix.glob("lib/liblevin.so*"):
        if file.is_symlink():
            file.unlink()
    real.rename(real.with_name(soname))
    for file in prefix.glob("lib/cmake/Levin/LevinTargets-*.cmake"):
        file.write_text(file.read_text().replace(real.name, soname))


def write_wheel(stage, info, out):
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in sorted(path for path in stage.rglob("*") if path.is_file()):
            name = file.relative_to(stage).as_posix()
            digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
            rows.writerow([name, f"sha256={digest}", file.stat().st_size])
            wheel.write(file, name)
        rows.writerow([f"{info}/RECORD", "", ""])
        wheel.writestr(f"{info}/RECORD", record.getvalue())


def main():
    build, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as work:
        stage = Path(work)
        prefix = stage / "levin"
        bundle.run("cmake", "--install", build, "--strip", "--prefix", prefix)
        version = config_value(prefix, r'PACKAGE_VERSION "([^"]+)"')
        torch = config_value(prefix, r'levin_check_torch\("[^"]*" "([^"]+)"')
        # The entry point and the torch package take their places.
        shutil.rmtree(prefix / "bin")
        for name in ("fetch_torch", "torch"):
            (prefix / "lib/levin" / name).unlink()
        bundle.bundle(prefix, Path(cache_value(build, "LEVIN_TORCH_DIR")))
        drop_links(prefix)
        set_run_paths(prefix)
        (prefix / "__init__.py").write_text((HERE / "__init__.py").read_text().replace("@TORCH_VERSION@", torch))
        major, minor = glibc([file for file in prefix.rglob("*") if file.is_file() and is_elf(file)])
        tag = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"
        info = stage / f"levin-{version}.dist-info"
        info.mkdir()
        summary = cache_value(build, "CMAKE_PROJECT_DESCRIPTION") or "The training stack for C++ on LibTorch"
        (info / "METADATA").write_text(METADATA.format(version=version, torch=torch, summary=summary))
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: levin\nRoot-Is-Purelib: false\nTag: {tag}\n")
        (info / "entry_points.txt").write_text("[console_scripts]\nlevin = levin:main\n")
        shutil.copy(HERE.parent.parent / "LICENSE", info / "LICENSE")
        out.mkdir(parents=True, exist_ok=True)
        wheel = out / f"levin-{version}-{tag}.whl"
        write_wheel(stage, info.name, wheel)
        print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
