"""Sphinx's settings. tools/site/build lays out the pages beside a copy of this file, with names.json."""
import json
import os
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

here = Path(__file__).resolve().parent
names = json.loads((here / "names.json").read_text())
index = json.loads((here / "index.json").read_text())

project = "Levin"
version = release = (here / "version").read_text()
html_title = f"Levin {version}"
extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = []
myst_heading_anchors = 4
# A block without a language is a drawing or a command line.
highlight_language = "none"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["levin.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = True
html_search_scorer = str(here / "scorer.js")
# Furo's own styles follow the reader's choice of light or dark; Pygments needs one for each.
pygments_style = "default"
pygments_dark_style = "github-dark"
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}


def link_names(app, doctree, page):
    """`levin::Fabric`, `TrainerOptions::max_steps` or `levin/fabric/fabric.h` in a page leads to the reference."""
    if page.startswith("api/"):
        return
    for literal in list(doctree.findall(nodes.literal)):
        if isinstance(literal.parent, (nodes.reference, nodes.title)):
            continue
        word = re.sub(r"\(.*\)$", "", literal.astext(), flags=re.S)
        if re.search(r"\(\w+=", literal.astext()):
            continue  # a call in Python
        # A plain word may mean anything; a class, a path or a call does not.
        if word not in names or (word.islower() and not re.search(r"::|/|_.*\(", literal.astext())):
            continue
        target, anchor = names[word]
        uri = os.path.relpath(target, os.path.dirname(page)) + ".html" + (f"#{anchor}" if anchor else "")
        reference = nodes.reference("", "", literal.deepcopy(), internal=True, refuri=uri)
        literal.parent.replace(literal, reference)


def add_index(app, doctree):
    """Every documented name is an entry of the index, which the search knows too."""
    names = index.get(app.env.docname, [])
    if names:
        # For the search, which compares whole entries: the name alone.
        doctree.insert(0, addnodes.index(entries=[("single", name, anchor, "main", None) for name, _, anchor in names]))
        listed = [("single", f"{name} ({owner})" if owner else name, anchor, "", None) for name, owner, anchor in names]
        app.env.domains.index_domain.entries.setdefault(app.env.docname, []).extend(listed)


def setup(app):
    app.connect("doctree-read", add_index)
    app.connect("doctree-resolved", link_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
