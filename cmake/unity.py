"""Writes files that include several sources each, of one folder where it can, and prints their paths (CMake's list syntax).

Sources come together only when none declares, in an anonymous namespace or as `static`, a name that is a word of another:
they are then as independent in one file as they were apart.

usage: unity.py ROOT OUTPUT MAX_LINES SOURCE...
"""
import collections
import re
import sys
from pathlib import Path

TOKEN = re.compile(r'R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/|[A-Za-z_]\w*|::|->|\[\[|\]\]|\d[\w.\']*|\S', re.DOTALL)
WORD = re.compile(r"[A-Za-z_]\w*$")
TYPES = {"struct", "class", "union", "enum"}
OPEN, CLOSE = {"(": ")", "[": "]", "[[": "]]"}, {")", "]", "]]"}
# A macro at namespace scope is no name. LEVIN_MODULE(Net) declares Net; TEST(Suite, Name) a class that no other test has.
MACRO = re.compile(r"[A-Z][A-Z0-9_]+$")
MODULE_MACRO = re.compile(r"[A-Z_]+_MODULE\(\s*(\w+)\s*\)")


def tokens_of(text):
    # Directives are no declarations; what they include or define is the same for every source of a folder, or rare.
    text = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", "", text, flags=re.MULTILINE)
    return [t for t in TOKEN.findall(text) if not t.startswith(("//", "/*", '"', "'", 'R"'))]


def words_of(tokens):
    """What a name of another source could be mistaken for; a word after . -> or :: is looked up elsewhere."""
    return {t for before, t in zip(["", *tokens], tokens) if WORD.match(t) and before not in {".", "->", "::"}}


def declared(statement):
    """{name: text} of one declaration, without what is in its parentheses. The text tells equal aliases from others."""
    if statement[:1] == ["template"]:
        depth, end = 0, len(statement)
        for i, token in enumerate(statement):
            depth += {"<": 1, ">": -1}.get(token, 0)
            if i and depth == 0:
                end = i + 1
                break
        statement = statement[end:]
    if not statement or statement[0] in {"static_assert", "friend", "extern"}:
        return {}
    if statement[0] == "using":
        if statement[1:2] == ["namespace"]:
            return {}
        name = statement[1] if "=" in statement else statement[-1]
        return {name: " ".join(statement)}
    if statement[0] == "namespace":  # an alias
        return {statement[1]: " ".join(statement)} if "=" in statement else {}
    if statement[0] == "concept":
        return {statement[1]: None}
    names, depth = {}, 0
    for i, token in enumerate(statement[:-1]):
        depth += {"<": 1, ">": -1}.get(token, 0)  # array<struct sigaction, 2> declares no type
        if depth or token in TYPES and statement[i + 1] in TYPES:
            continue
        if token in TYPES and WORD.match(statement[i + 1]):
            names[statement[i + 1]] = None
            return names
    for i, token in enumerate(statement):
        after = statement[i + 1] if i + 1 < len(statement) else ";"
        if after == "()" and MACRO.match(token):
            return {}
        if WORD.match(token) and token != "__attribute__" and after in {"()", "=", ";", "[]"}:
            return {token: None}
    return {}


def local_names(tokens):
    """What only this source may see: declared directly in an anonymous namespace, or static outside of a class."""
    names = {}
    stack = []  # what each open brace is: "anonymous", "namespace" or "body"
    statement, closing = [], []

    def finish():
        if statement and (here == "anonymous" or "static" in statement):
            names.update(declared([t for t in statement if t not in {"static", "inline", "constexpr", "const"}]))
        statement.clear()

    for token in tokens:
        here = stack[-1] if stack else "namespace"
        if closing:
            if token in OPEN:
                closing.append(OPEN[token])
            elif token == closing[-1]:
                closing.pop()
            continue
        if token in OPEN:
            closing.append(OPEN[token])
            if token != "[[" and here != "body":
                statement.append(token + OPEN[token])
        elif token == "{":
            if here == "body":
                stack.append("body")
            elif statement[:1] == ["namespace"] and "=" not in statement:
                stack.append("anonymous" if len(statement) == 1 or here == "anonymous" else "namespace")
                statement.clear()
            else:
                finish()
                stack.append("body")
        elif token == "}":
            if stack:
                stack.pop()
            statement.clear()
        elif here != "body":
            if token == ";":
                finish()
            else:
                statement.append(token)
    return names


def source_of(path, text, line_count):
    tokens = tokens_of(text)
    names = local_names(tokens) | {name: None for name in MODULE_MACRO.findall(text)}
    return {"path": path, "lines": line_count, "names": names, "words": words_of(tokens)}


def clash(a, b):
    """Whether a name of `a` would mean something else, or twice something, in a file with `b`."""
    return any(name in b["words"] and (text is None or b["names"].get(name) != text) for name, text in a["names"].items())


def group(parts, max_lines):
    """Joins lists of sources where they fit: big ones first, each to the first list that takes it."""
    units = []
    for part in sorted(parts, key=lambda part: (-lines(part), part[0]["path"])):
        for unit in units:
            fits = lines(unit) + lines(part) <= max_lines
            if fits and not any(clash(a, b) or clash(b, a) for a in unit for b in part):
                unit.extend(part)
                break
        else:
            units.append(list(part))
    return units


def lines(unit):
    """Rounded up source by source, so that a small edit seldom moves a source to another list."""
    return sum((source["lines"] + 49) // 50 * 50 for source in unit)


def main():
    root, output, max_lines = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    folders = {}
    for name in sys.argv[4:]:
        path = Path(name).relative_to(root).as_posix()
        text = Path(name).read_text()
        folders.setdefault(path.rsplit("/", 1)[0], []).append(source_of(path, text, text.count("\n")))
    output.mkdir(parents=True, exist_ok=True)
    # Folders first: what is edited together is compiled together. Then what is left over of several.
    units = [unit for sources in folders.values() for unit in group([[source] for source in sources], max_lines)]
    written, count = [], collections.Counter()
    for unit in group(units, max_lines):
        paths = sorted(source["path"] for source in unit)
        folders_here = sorted({path.split("/")[-2] for path in paths})
        name = "_".join(folders_here) if len(folders_here) <= 3 else "mixed"
        count[name] += 1
        file = output / f"{name}_{count[name]}.cpp"
        # Relative paths: clones in different places share a compiler cache.
        text = "".join(f'#include "{path}"\n' for path in paths)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
        written.append(str(file))
    print(";".join(written), end="")


if __name__ == "__main__":
    main()
