"""bench/run with made-up programs and peers: the table, the limits, the failures."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class BenchRun(unittest.TestCase):
    def run_with(self, programs, peers=(), names=()):
        """programs, peers: {name: Python text}. Returns status, table, messages and the JSON rows."""
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            (work / "bench/peers").mkdir(parents=True)
            (work / "bin").mkdir()
            for name, text in programs.items():
                (work / f"bench/{name}.cpp").write_text("int main() {}\n")
                program = work / "bin" / name
                program.write_text(f"#!{sys.executable}\n{text}\n")
                program.chmod(0o755)
            for name, text in dict(peers).items():
                (work / f"bench/peers/{name}.py").write_text(text)
            result = subprocess.run(
                [sys.executable, ROOT / "bench/run", "--bin", work / "bin", "--python", sys.executable, "--rounds", "2",
                 "--json", work / "rows.json", *names],
                env={**os.environ, "LEVIN_BENCH_DIR": str(work / "bench")}, capture_output=True, text=True)
            rows = json.loads((work / "rows.json").read_text()) if (work / "rows.json").exists() else None
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


if __name__ == "__main__":
    unittest.main()
