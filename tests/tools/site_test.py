"""tools/site: pages of the API from Doxygen's XML, the order of the pages, the check of links of a built site."""
import importlib.machinery
import importlib.util
import re
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/site"))
import api  # noqa: E402

loader = importlib.machinery.SourceFileLoader("site_build", str(ROOT / "tools/site/build"))
build = importlib.util.module_from_spec(importlib.util.spec_from_loader("site_build", loader))
loader.exec_module(build)

XML = """<doxygen><compounddef id="structlevin_1_1Options" kind="struct" prot="public">
<compoundname>levin::Options</compoundname>
<sectiondef kind="public-attrib">
<memberdef kind="variable" id="f1" prot="public" static="no"><type>std::optional&lt; int64_t &gt;</type><name>steps</name>
<initializer>= {}</initializer><briefdescription><para>Number of steps.</para></briefdescription><detaileddescription/>
<location file="levin/trainer/options.h" line="3"/></memberdef>
<memberdef kind="variable" id="f2" prot="private" static="no"><type>int</type><name>hidden_</name>
<briefdescription/><detaileddescription/><location file="levin/trainer/options.h" line="4"/></memberdef>
</sectiondef>
<briefdescription/><detaileddescription><para>What is asked for. More of it.</para></detaileddescription>
<location file="levin/trainer/options.h" line="2"/></compounddef></doxygen>"""
USER = """<doxygen><compounddef id="classlevin_1_1Trainer" kind="class" prot="public">
<compoundname>levin::Trainer</compoundname>
<sectiondef kind="public-func">
<memberdef kind="function" id="m1" prot="public" static="no" explicit="yes" virt="non-virtual"><type/><name>Trainer</name>
<argsstring>(Options options)</argsstring><param><type><ref refid="structlevin_1_1Options" kindref="compound">Options</ref></type>
<declname>options</declname></param><briefdescription/><detaileddescription/><location file="levin/trainer/trainer.h" line="9"/></memberdef>
<memberdef kind="function" id="m2" prot="public" static="no" explicit="no" virt="non-virtual"><type>void</type><name>fit</name>
<argsstring>(int64_t steps=1) const</argsstring><param><type>int64_t</type><declname>steps</declname><defval>1</defval></param>
<briefdescription><para>Trains.</para></briefdescription><detaileddescription/><location file="levin/trainer/trainer.h" line="10"/></memberdef>
</sectiondef>
<briefdescription><para>Runs &lt;all&gt;.</para></briefdescription><detaileddescription/>
<location file="levin/trainer/trainer.h" line="8"/></compounddef></doxygen>"""


class Pages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        (self.root / "xml").mkdir()
        (self.root / "xml/options.xml").write_text(XML)
        (self.root / "xml/trainer.xml").write_text(USER)

    def reference(self, excludes=lambda path: False):
        return api.Reference(self.root / "xml", excludes)

    def test_a_page_for_each_header(self):
        api.write_pages(self.reference(), self.root, {"trainer": "the loop"})
        page = (self.root / "api/trainer/options.md").read_text()
        self.assertIn('#include "levin/trainer/options.h"', page)
        self.assertIn("Number of steps.", page)
        self.assertIn("std::optional&lt;int64_t&gt;", page)
        self.assertNotIn("hidden_", page)
        page = (self.root / "api/trainer/trainer.md").read_text()
        self.assertIn('<a href="options.html#Options">Options</a>', page)
        self.assertIn("void <b>fit</b>(int64_t steps = 1) const", page)
        self.assertIn("Runs &lt;all&gt;.", page)
        self.assertIn("the loop", (self.root / "api/index.md").read_text())

    def test_the_first_word_of_a_sentence_is_no_link(self):
        link = '<ref refid="structlevin_1_1Options" kindref="compound">Options</ref>'
        text = f"{link} of a run. {link} may be given: {link} are refused. One {link} is enough."
        (self.root / "xml/trainer.xml").write_text(USER.replace("Trains.", text))
        api.write_pages(self.reference(), self.root, {})
        page = (self.root / "api/trainer/trainer.md").read_text()
        self.assertIn("Options of a run. Options may be given: Options are refused. One <a ", page)

    def test_private_headers_have_no_page(self):
        api.write_pages(self.reference(lambda path: path.endswith("options.h")), self.root, {})
        self.assertFalse((self.root / "api/trainer/options.md").exists())
        self.assertNotIn("<a href", (self.root / "api/trainer/trainer.md").read_text())

    def test_table_of_options(self):
        reference = self.reference()
        api.write_options(reference, self.root, "docs/options", "levin::Options", "Options", ["Text."])
        page = (self.root / "docs/options.md").read_text()
        self.assertIn('<tr id="Options.steps">', page)
        self.assertIn("not set", page)
        index = api.index_of(reference, [("docs/options", "levin::Options")])
        self.assertIn(("steps", "option of ", "Options.steps"), index["docs/options"])

    def test_an_option_without_a_comment_is_refused(self):
        (self.root / "xml/options.xml").write_text(XML.replace("<para>Number of steps.</para>", ""))
        with self.assertRaisesRegex(SystemExit, "without a /// line: steps"):
            api.write_options(self.reference(), self.root, "docs/options", "levin::Options", "Options", [])

    def test_links_of_a_site(self):
        site = self.root / "site"
        site.mkdir()
        (site / "a.html").write_text('<a href="b.html#here">b</a><a href="https://example.org">web</a>')
        (site / "b.html").write_text('<p id="here"></p><img src="data:image/png;base64,x">')
        self.assertEqual(build.check_links(site), [])
        (site / "a.html").write_text('<a href="c.html">c</a><a href="b.html#gone">b</a><script src="https://example.org/x.js"></script>')
        self.assertEqual(len(build.check_links(site)), 3)


class Tree(unittest.TestCase):
    def test_the_sidebar_has_every_page(self):
        groups = build.groups(build.pages())
        names = [page.name for _, pages in groups for page in pages]
        for page in (ROOT / "docs").glob("*.md"):
            if page.name != "README.md":
                self.assertIn(page.name, names)
        self.assertEqual(len(names), len(set(names)))

    def test_every_trainer_option_is_documented(self):
        headers = [path for path in (ROOT / "levin").rglob("*.h") if "struct TrainerOptions {" in path.read_text()]
        self.assertEqual(len(headers), 1)
        body = headers[0].read_text().split("struct TrainerOptions {\n")[1].split("\n};")[0].splitlines()
        fields = [i for i, line in enumerate(body) if not line.strip().startswith("//") and line.strip()]
        self.assertGreater(len(fields), 30)
        for i in fields:
            self.assertRegex(body[i - 1].strip(), r"^///", body[i])

    def test_private_headers_follow_the_install_rule(self):
        private = build.private_headers()
        self.assertTrue(private("levin/testing/ranks.h"))
        self.assertFalse(private("levin/trainer/trainer.h"))


if __name__ == "__main__":
    unittest.main()
