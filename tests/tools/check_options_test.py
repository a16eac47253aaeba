"""tools/check_options on small trees: the good one passes, and each field that nothing reads is named."""
import unittest

from tree_check import TreeCheck

OPTIONS = """#pragma once
/// Of a loader.
struct LoaderOptions {
  /// Rows of a batch.
  int64_t rows = 1;
  std::function<void(int step)> on_batch = {};
  std::optional<int> threads = {};
  bool any() const { return rows > 0; }
};
"""
READS = '#include "levin/data/options.h"\nint f(const LoaderOptions& o) { o.on_batch(1); return o.rows + *o.threads; }\n'


class CheckOptions(TreeCheck):
    tool = "check_options"
    tree = {"levin/data/options.h": OPTIONS, "levin/data/loader.cpp": READS}

    def test_good_tree(self):
        self.assertEqual(self.run_on({}), (0, "options: fine (3 fields of 1 structs)\n"))

    def test_a_field_that_nobody_reads(self):
        self.assert_breach({"levin/data/loader.cpp": READS.replace("*o.threads", "0")}, "LoaderOptions::threads")

    def test_what_is_no_read(self):
        for text in ("o.threads = 2;", "LoaderOptions p{.threads = 2};", "// o.threads", "auto m = &LoaderOptions::threads;"):
            source = READS.replace("return o.rows + *o.threads;", text + " return o.rows;")
            self.assert_breach({"levin/data/loader.cpp": source}, "LoaderOptions::threads")

    def test_a_comparison_and_an_initializer_of_another_struct_are_reads(self):
        for text in ("(void)(o.threads == 2);", "Other p{.threads = o.threads};", "(void)all_.options->threads;"):
            source = READS.replace("return o.rows + *o.threads;", text + " return o.rows;")
            self.assertEqual(self.run_on({"levin/data/loader.cpp": source})[0], 0, text)

    def test_a_read_of_another_struct_with_such_a_field(self):
        reads = READS.replace("*o.threads", "0")
        other = "int g(const Other& o) { return o.threads; }\n"
        self.assert_breach({"levin/data/loader.cpp": reads, "levin/io/other.cpp": other}, "LoaderOptions::threads")


if __name__ == "__main__":
    unittest.main()
