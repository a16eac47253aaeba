"""bench/run with made-up programs and peers: the table, the limits, the failures."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class BenchRun(unittest.TestCase):
    def run_with(self, programs, peers=(), names=(), source="int main() {}\n"):
        """programs, peers: {name: Python text}. Returns status, table, messages and the JSON rows."""
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            (work / "bench/peers").mkdir(parents=True)
            (work / "bin").mkdir()
            for name, text in programs.items():
                (work / f"bench/{name}.cpp").write_text(source)
                program = work / "bin" / name
                program.write_text(f"#!{sys.executable}\n{text}\n")
                program.chmod(0o755)
            for name, text in dict(peers).items():
                (work / f"bench/peers/{name}.py").write_text(text)
            result = subprocess.run(
                [sys.executable, ROOT / "bench/run", "--bin", work / "bin", "--python", sys.executable, "--rounds", "2",
                 "--json", work / "rows.json", "--markdown", work / "table.md", "--picture", work / "bars.svg", *names],
                env={**os.environ, "LEVIN_BENCH_DIR": str(work / "bench")}, capture_output=True, text=True)
            rows = json.loads((work / "rows.json").read_text()) if (work / "rows.json").exists() else None
            self.files = {path.name: path.read_text() for path in (work / "table.md", work / "bars.svg") if path.exists()}
            return result.returncode, result.stdout, result.stderr, rows

    @staticmethod
    def prints(**figure):
        return f"print('noise')\nprint({json.dumps(json.dumps(figure))})\n"

    def test_ratio_of_times(self):
        status, table, _, rows = self.run_with({"step": self.prints(case="step", value=50, unit="us", limit=2)},
                                               {"step": self.prints(case="step", value=300, unit="us")})
        self.assertEqual(status, 0)
        self.assertEqual((rows[0]["ratio"], rows[0]["ok"]), (6.0, True))
        self.assertRegex(table, r"step \| 50 us \| 300 us \| 6.00 +\| 2.00 +\| yes")

    def test_ratio_of_rates(self):
        figure = dict(case="loader", unit="images/s", better="higher", limit=1.0)
        status, _, errors, rows = self.run_with({"loader": self.prints(value=500, **figure)},
                                                {"loader": self.prints(value=1000, **figure)})
        self.assertEqual(rows[0]["ratio"], 0.5)
        self.assertEqual(status, 1)
        self.assertIn("below their limit: loader", errors)

    def test_without_a_peer(self):
        status, table, _, rows = self.run_with({"alone": self.prints(case="alone", value=1, unit="s")})
        self.assertEqual((status, rows[0]["ratio"], rows[0]["ok"]), (0, None, None))
        self.assertIn("case", table)

    def test_a_program_that_fails(self):
        status, _, errors, _ = self.run_with({"bad": "raise SystemExit('no such device')"})
        self.assertEqual(status, 1)
        self.assertIn("no such device", errors)
        self.assertIn("failed: bad", errors)

    def test_a_program_that_prints_nothing_fails(self):
        self.assertEqual(self.run_with({"mute": ""})[0], 1)

    def test_skip(self):
        status, _, errors, rows = self.run_with({"gpu": self.prints(skip="no GPU")})
        self.assertEqual((status, rows), (0, []))
        self.assertIn("gpu: skipped: no GPU", errors)

    def test_unknown_name(self):
        status, _, errors, _ = self.run_with({"step": self.prints(case="step", value=1)}, names=["stpe"])
        self.assertEqual(status, 2)
        self.assertIn("known: step", errors)

    def test_best_of_rounds(self):
        count = ("import pathlib, json\nf = pathlib.Path(__file__ + '.n')\nn = int(f.read_text()) if f.exists() else 9\n"
                 "f.write_text(str(n - 4))\nprint(json.dumps({'case': 'c', 'value': n, 'unit': 'us'}))\n")
        self.assertEqual(self.run_with({"c": count})[3][0]["levin"], "5 us")

    # ---- programs that take turns

    # Each writes down when it had its turn. {times}: ms of the rounds by mode; a mode that is missing there is skipped.
    PLAYER = """
import json, os, sys
side, times, log = {side!r}, {times!r}, {log!r}
if "--list" in sys.argv:
    for case in ("first", "second"):
        print(json.dumps({{"list": case, "title": case.title() + " case", "modes": ["eager", "compiled"]}}))
    sys.exit()
mode, case = sys.argv[sys.argv.index("--mode") + 1], sys.argv[sys.argv.index("--case") + 1]
assert "--turns" in sys.argv
if mode not in times:
    print(json.dumps({{"skip": "no " + mode}}))
    sys.exit()
if times[mode] is None:
    sys.exit("out of memory")
print("noise")
print(json.dumps({{"ready": case}}), flush=True)
for ms in times[mode]:
    if not sys.stdin.readline():
        break
    with open(log, "a") as file:
        file.write(f"{{case}} {{side}} {{mode}}\\n")
    print(json.dumps({{"round": ms}}), flush=True)
if sys.stdin.readline():
    sys.exit("no more rounds")
print(json.dumps({{"name": case, "mode": mode, "ms": 1, "spread": [1, 1], "peak_gb": 2.5, "first_s": 0.1, "loss": 2.0, "images_per_s": 640}}))
"""

    def take_turns(self, levin, peer, *flags):
        with tempfile.NamedTemporaryFile("r", suffix=".log") as log:
            program = self.PLAYER.format(side="levin", times=levin, log=log.name)
            other = {"speed": self.PLAYER.format(side="peer", times=peer, log=log.name)} if peer is not None else {}
            result = self.run_with({"speed": program}, other, flags, source="// --turns\n")
            self.turns = log.read().splitlines()
            return result

    def test_turns_alternate(self):
        status, table, errors, rows = self.take_turns({"eager": [8, 10], "compiled": [4, 6]}, {"eager": [12, 14]}, "--cases", "second")
        self.assertEqual(status, 0, errors)
        self.assertEqual(self.turns, [f"second {who}" for who in ("levin eager", "levin compiled", "peer eager", "peer eager", "levin compiled",
                                                                  "levin eager")])
        self.assertRegex(table, r"second \| 5 ms compiled \| 13 ms eager \| 2.60 +\| 1.00 +\| yes")
        turns = rows[0]["turns"]
        self.assertEqual(turns["levin"]["compiled"]["spread"], [4, 6])
        self.assertEqual(turns["ratio_range"], [2.0, 3.5])

    def test_turns_rest_before_each_round(self):
        began = time.monotonic()
        status, _, errors, _ = self.take_turns({"eager": [8, 10]}, {"eager": [12, 14]}, "--cases", "second", "--rest", "0.25")
        self.assertEqual(status, 0, errors)
        self.assertGreater(time.monotonic() - began, 4 * 0.25)

    def test_turns_against_the_best_mode_of_the_peer(self):
        status, table, errors, rows = self.take_turns({"eager": [9, 9], "compiled": [7, 7]},
                                                      {"eager": [12, 12], "default": [6, 6]}, "--cases", "first")
        self.assertEqual(self.turns.count("first levin compiled"), 2)
        self.assertEqual((rows[0]["turns"]["peer_mode"], rows[0]["ok"], status), ("default", False, 1))
        self.assertIn("peer reduce-overhead skipped: no reduce-overhead", errors)
        self.assertIn("below their limit: first", errors)

    def test_turns_table_and_picture(self):
        status, _, errors, _ = self.take_turns({"eager": [8, 10]}, {"eager": [12, 14], "default": [10, 10]}, "--peer-modes", "eager,default",
                                               "--together", "2")
        # Two cases get ready at once; their rounds do not mix.
        self.assertEqual((status, [turn.split()[0] for turn in self.turns]), (0, ["first"] * 6 + ["second"] * 6), errors)
        self.assertIn("Levin", self.files["table.md"])
        self.assertRegex(self.files["table.md"], r"\| First case \| PyTorch \+ Lightning \| eager \| 13.00 \| 640 images \| 2.50 \|  \| 0.10 \| 2.0000 \|")
        svg = xml.etree.ElementTree.fromstring(self.files["bars.svg"])
        self.assertEqual(svg.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertIn("Second case", self.files["bars.svg"])

    def test_turns_of_a_peer_that_fails(self):
        status, _, errors, rows = self.take_turns({"eager": [8, 10]}, {"eager": [12, 14], "default": None}, "--cases", "first",
                                                  "--peer-modes", "default,eager")
        self.assertEqual(status, 1)
        self.assertIn("peer default exited with 1: out of memory", errors)
        # The others are measured all the same.
        self.assertAlmostEqual(rows[0]["ratio"], 13 / 9)

    def test_turns_of_a_program_that_dies(self):
        status, _, errors, rows = self.take_turns({"eager": [8], "compiled": [9, 9]}, None, "--cases", "first")
        self.assertEqual(status, 1)
        self.assertIn("levin eager exited with 1: no more rounds", errors)
        self.assertEqual(rows[0]["levin"], "9 ms compiled")

    def test_turns_of_an_unknown_case(self):
        status, _, errors, _ = self.take_turns({"eager": [8]}, None, "--cases", "frist")
        self.assertEqual(status, 1)
        self.assertIn("known: first, second", errors)


if __name__ == "__main__":
    unittest.main()
