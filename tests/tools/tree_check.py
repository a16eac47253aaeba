"""What the tests of check_floors and check_links share: a checker of tools/ runs on a small tree."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class TreeCheck(unittest.TestCase):
    """Subclasses say which checker runs (`tool`) and which tree passes it (`tree`: path to text)."""

    tool = ""
    tree = {}

    def run_on(self, files):
        """Status and output on the good tree with these files added or replaced."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**self.tree, **files}.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            result = subprocess.run([sys.executable, ROOT / "tools" / self.tool, folder], capture_output=True, text=True)
            return result.returncode, result.stdout

    def assert_breach(self, files, *words):
        status, output = self.run_on(files)
        self.assertEqual(status, 1, output)
        for word in words:
            self.assertIn(word, output)
