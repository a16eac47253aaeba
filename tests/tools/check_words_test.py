"""tools/check_words on small trees: the good one passes, and each breach is named with its file, its line and what to write."""
import unittest

from tree_check import TreeCheck


class CheckWords(TreeCheck):
    tool = "check_words"
    tree = {
        "README.md": "# Top\nThe run resumes automatically; parameters are sharded over the ranks.\n",
        "docs/nn.md": "# nn\n`goes on` in code is left alone, and so is a sum divided by two.\n",
        "examples/a.cpp": '#include "goes on.h"\n// A full parameter.\nauto x = "resumes";\n',
    }

    def test_good_tree(self):
        self.assertEqual(self.run_on({}), (0, "words: fine\n"))

    def test_page(self):
        self.assert_breach({"README.md": "# Top\n\nIt goes on by itself.\n"}, "README.md:3", '"goes on"', "resume", '"by itself"', "by default")

    def test_idiom_over_the_end_of_a_line(self):
        self.assert_breach({"README.md": "# Top\nIt goes\non.\n"}, "README.md:2", '"goes on"')

    def test_comment(self):
        self.assert_breach({"examples/a.cpp": "\n\n#include <x>\nint y;  // whole parameters\n"}, "examples/a.cpp:4", "unsharded")

    def test_comment_over_two_lines(self):
        self.assert_breach({"examples/a.cpp": "// is divided\n// over ranks\n"}, "examples/a.cpp:1", "sharded over")

    def test_string(self):
        self.assert_breach({"examples/a.cpp": 'auto x = "a share of the batches";\n'}, "examples/a.cpp:1", "fraction")

    def test_string_in_two_pieces(self):
        self.assert_breach({"examples/a.cpp": 'auto x = "the run goes "\n         "on";\n'}, "examples/a.cpp:1", "resume")

    def test_identifiers(self):
        self.assert_breach({"examples/a.cpp": "TEST(Memory, PeakIsForeseen) {}\n"}, "examples/a.cpp:1", "predict")
        self.assert_breach({"examples/a.cpp": "int whole_params = 0;\n"}, "examples/a.cpp:1", "unsharded")

    def test_comment_of_a_script(self):
        self.assert_breach({"examples/CMakeLists.txt": "project(x)\n# found by themselves\n"}, "examples/CMakeLists.txt:2", "automatically")

    def test_marked_line(self):
        self.assertEqual(self.run_on({"examples/a.cpp": "// the road goes on (words: ok)\n"})[0], 0)

    def test_long_line_of_a_page(self):
        self.assert_breach({"docs/nn.md": "# nn\n" + "word " * 29 + "\n"}, "docs/nn.md:2", "145 columns")

    def test_code_blocks_may_be_long(self):
        self.assertEqual(self.run_on({"docs/nn.md": "# nn\n```\n" + "it goes on " * 20 + "\n```\n"})[0], 0)


if __name__ == "__main__":
    unittest.main()
