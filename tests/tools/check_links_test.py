"""tools/check_links on small trees: the good one passes, and each breach is named with its file and line."""
import unittest

from tree_check import TreeCheck


class CheckLinks(TreeCheck):
    tool = "check_links"
    tree = {
        "README.md": "# Top\n[all](docs/README.md) [how](docs/nn.md#two-words) [web](https://example.org/x)\n",
        "docs/README.md": "# Pages\n[nn](nn.md)\n",
        "docs/nn.md": "# nn\n## Two words\n[up](../README.md#top) `levin/nn/unit.h`, `unit.h` and `levin/<folder>/x.cpp`\n",
        "levin/nn/unit.h": "// see docs/nn.md and levin/nn/*.h; torch/torch.h is not ours\n",
    }

    def test_good_tree(self):
        self.assertEqual(self.run_on({}), (0, "links: fine\n"))

    def test_link_to_nothing(self):
        self.assert_breach({"README.md": "# Top\n\n[x](docs/gone.md)\n"}, "README.md:3", "docs/gone.md")

    def test_anchor_to_nothing(self):
        self.assert_breach({"README.md": "# Top\n[x](docs/nn.md#three-words)\n"}, "README.md:2", "#three-words")

    def test_anchor_of_the_same_page(self):
        self.assert_breach({"README.md": "# Top\n[x](#bottom)\n"}, "README.md:2", "#bottom")

    def test_second_heading_of_a_name(self):
        pages = {"README.md": "# Top\n[a](docs/nn.md#a) [b](docs/nn.md#a-1)\n", "docs/nn.md": "# A\n## A\n[up](../README.md)\n"}
        self.assertEqual(self.run_on(pages)[0], 0)

    def test_links_in_code_are_no_links(self):
        self.assertEqual(self.run_on({"README.md": "# Top\n```cpp\nauto f = [&](int x) {};\n```\n`[](auto y)`\n"})[0], 0)

    def test_page_that_is_not_listed(self):
        self.assert_breach({"docs/lost.md": "# Lost\n"}, "docs/README.md", "lost.md is not listed")

    def test_path_in_a_page(self):
        self.assert_breach({"docs/nn.md": "# nn\n## Two words\n`levin/nn/gone.h`\n"}, "docs/nn.md:3", "levin/nn/gone.h")

    def test_path_in_a_comment(self):
        self.assert_breach({"levin/nn/a.cpp": "int x;  // as tests/nn/a_test.cpp shows\n"}, "levin/nn/a.cpp:1", "tests/nn/a_test.cpp")

    def test_path_in_a_script(self):
        self.assert_breach({"tools/lint": "true\n# see tools/gone\n"}, "tools/lint:2", "tools/gone")

    def test_pattern_that_matches_nothing(self):
        self.assert_breach({"levin/nn/a.cpp": "// levin/nn/b_*.h\n"}, "levin/nn/b_*.h")

    def test_name_alone(self):
        self.assert_breach({"docs/nn.md": "# nn\n## Two words\n`gone.cpp`\n"}, "docs/nn.md:3", "gone.cpp")

    def test_code_is_no_comment(self):
        self.assertEqual(self.run_on({"levin/nn/a.cpp": 'auto url = "levin/nn/gone.h";\n'})[0], 0)


if __name__ == "__main__":
    unittest.main()
