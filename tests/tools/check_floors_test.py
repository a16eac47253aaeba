"""tools/check_floors on small trees: the good one passes, and each breach is named with its file."""
import unittest

from tree_check import TreeCheck

TABLE = """| n | folder | what |
|---|---|---|
| 0 | `core/` | base |
| 1 | `devices/` | devices |
| 1 | `io/` | files |
| 2 | `data/` | data |
| - | `testing/` | helpers |
"""


class CheckFloors(TreeCheck):
    tool = "check_floors"
    tree = {
        "docs/architecture.md": TABLE,
        "levin/core/error.h": "#pragma once\n#include <string>\n",
        "levin/core/error.cpp": '#include "levin/core/error.h"\n',
        "levin/data/loader.h": '#pragma once\n#include "levin/core/error.h"\n#include "levin/io/file.h"\n',
        "levin/io/file.h": "#pragma once\n",
        "tests/core/core_test.cpp": '#include "levin/testing/ranks.h"\n',
    }

    def test_good_tree(self):
        self.assertEqual(self.run_on({}), (0, "floors: fine\n"))

    def test_higher_floor(self):
        self.assert_breach({"levin/core/up.h": '#include "levin/data/loader.h"\n'}, "levin/core/up.h:1", "levin/data/loader.h")

    def test_same_number_in_another_folder(self):
        self.assert_breach({"levin/io/side.h": '#include "levin/devices/cpu.h"\n'}, "levin/io/side.h:1")

    def test_the_umbrella(self):
        self.assert_breach({"levin/io/all.h": '#include "levin/levin.h"\n'}, "stands above")

    def test_testing_from_a_floor(self):
        self.assert_breach({"levin/io/t.cpp": '#include <levin/testing/ranks.h>\n', "tests/io/io_test.cpp": ""}, "tests alone")

    def test_heavy_headers(self):
        for target in ("torch/torch.h", "fmt/format.h", "nlohmann/json.hpp", "boost/asio.hpp"):
            self.assert_breach({"levin/io/heavy.h": f"#include <{target}>\n"}, target)
        status, output = self.run_on({"levin/core/heavy.cpp": "#include <torch/torch.h>\n"})
        self.assertEqual(status, 0, output)

    def test_long_file(self):
        self.assert_breach({"levin/io/long.h": "\n" * 701}, "701 lines")
        self.assertEqual(self.run_on({"levin/io/long.h": "\n" * 700})[0], 0)

    def test_crowded_folder(self):
        files = {f"levin/io/part{i}.h": "" for i in range(40)}
        self.assert_breach(files, "levin/io: 41 files")
        self.assertEqual(self.run_on(dict(list(files.items())[:39]))[0], 0)
        data = {f"tests/core/fixtures/{i}.txt": "" for i in range(41)}
        self.assertEqual(self.run_on(data)[0], 0)

    def test_mirror(self):
        self.assert_breach({"tests/dato/x_test.cpp": ""}, "tests/dato")
        self.assert_breach({"levin/devices/cpu.cpp": ""}, "no tests/devices")

    def test_default_over_an_own_enum(self):
        of = lambda default, label="Kind::kRed": {"levin/core/s.cpp": "int f(Kind k) {\n  switch (k) {\n    case %s:\n      return 1;\n    default:\n      %s\n  }\n}\n" % (label, default)}
        self.assert_breach(of("return 2;"), "levin/core/s.cpp:2", "Kind")
        self.assert_breach(of("break;", "detail::Kind::kRed"), "detail::Kind")
        self.assert_breach(of("switch (n) { case 1: return 2; default: return 3; }"), "levin/core/s.cpp:2")
        for fine in (of("throw Error();"), of('levin::detail::fail("no");'), of("return 2;", "at::kFloat"), of("return 2;", "3"),
                     of("return 2;", "at::DeviceType::CUDA")):
            self.assertEqual(self.run_on(fine)[0], 0, fine)

    def test_unknown_folder(self):
        self.assert_breach({"levin/magic/x.h": ""}, "magic/ is not in the table")


if __name__ == "__main__":
    unittest.main()
