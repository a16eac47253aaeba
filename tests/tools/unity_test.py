"""cmake/unity.py: which sources may be compiled as one."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cmake"))
import unity


def source(path, text, lines=10):
    return unity.source_of(path, text, lines)


def names(text):
    return set(unity.local_names(unity.tokens_of(text)))


class LocalNames(unittest.TestCase):
    def test_declarations(self):
        self.assertEqual(names("""
            namespace levin { namespace {
            constexpr int kPort = 12;
            std::mutex once_mutex;
            const char* const kWords[] = {"a", "b"};
            template <class T> T parse(std::string_view text, int base = 10) { int local = 3; return local; }
            struct Traits { int inside = 1; };
            class Impl final : public Base { void method(); };
            enum class Kind { kOne };
            using Clock = std::chrono::steady_clock;
            static_assert(sizeof(int) == 4);
            [[noreturn]] void fail(const std::string& why);
            } // namespace
            int visible = 3; }"""), {"kPort", "once_mutex", "kWords", "parse", "Traits", "Impl", "Kind", "Clock", "fail"})

    def test_static_is_local_and_the_rest_is_not(self):
        self.assertEqual(names("namespace levin { static int counter = 0; static void bump() { static int n = 0; } void seen() {} }"),
                         {"counter", "bump"})

    def test_words_in_text_and_comments_do_not_count(self):
        self.assertEqual(names('namespace { // int comment = 1;\n const char* kText = "int quoted = 1; }"; int after = 1; }'),
                         {"kText", "after"})


class Group(unittest.TestCase):
    def group(self, *sources, lines=100):
        return sorted(sorted(s["path"] for s in unit) for unit in unity.group([[s] for s in sources], lines))

    def test_independent_sources_come_together(self):
        self.assertEqual(self.group(source("a", "namespace { int x = 1; }"), source("b", "namespace { int y = 1; }")), [["a", "b"]])

    def test_the_same_name_keeps_them_apart(self):
        self.assertEqual(self.group(source("a", "namespace { int x = 1; }"), source("b", "namespace { float x() {} }")), [["a"], ["b"]])

    def test_a_name_the_other_uses_keeps_them_apart(self):
        self.assertEqual(self.group(source("a", "namespace { void describe() {} }"), source("b", "void f() { describe(3); }")), [["a"], ["b"]])

    def test_macros_are_no_names_and_modules_are(self):
        tests = "namespace { TEST(%s, Works) { EXPECT_TRUE(true); } }"
        self.assertEqual(self.group(source("a", tests % "A"), source("b", tests % "B")), [["a", "b"]])
        net = "namespace { struct %sImpl {}; LEVIN_MODULE(%s); }"
        self.assertEqual(self.group(source("a", net % ("A", "A")), source("b", net % ("B", "B"))), [["a", "b"]])
        self.assertEqual(self.group(source("a", net % ("A", "A")), source("b", "void f() { A a; }")), [["a"], ["b"]])

    def test_members_and_qualified_names_do_not(self):
        self.assertEqual(self.group(source("a", "namespace { int size = 1; }"), source("b", "int f() { return v.size() + w->size() + std::size(v); }")),
                         [["a", "b"]])

    def test_equal_aliases_do_not(self):
        alias = "namespace { using Clock = std::chrono::steady_clock; }"
        self.assertEqual(self.group(source("a", alias), source("b", alias)), [["a", "b"]])
        self.assertEqual(self.group(source("a", alias), source("b", "namespace { using Clock = Fake; }")), [["a"], ["b"]])

    def test_lists_stay_whole(self):
        a, b, c = source("a", "", 50), source("b", "", 50), source("c", "", 100)
        self.assertEqual([[s["path"] for s in unit] for unit in unity.group([[a, b], [c]], 150)], [["a", "b"], ["c"]])
        self.assertEqual([[s["path"] for s in unit] for unit in unity.group([[a, b], [c]], 200)], [["a", "b", "c"]])

    def test_length(self):
        self.assertEqual(self.group(source("a", "", 100), source("b", "", 100), source("c", "", 50), lines=150), [["a", "c"], ["b"]])


if __name__ == "__main__":
    unittest.main()
