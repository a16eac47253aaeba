"""Pages of the API reference, made from Doxygen's XML: one for each header, one for each folder, one for all."""
import html
import os
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

CLASSES = {"class", "struct", "union"}
BLOCKS = {"verbatim", "programlisting", "itemizedlist", "orderedlist", "simplesect", "parameterlist", "table"}
WIDTH = 100


def text_of(element):
    return " ".join("".join(element.itertext()).split()) if element is not None else ""


def anchor(name):
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "member"


def place(name):
    """The anchor of a name, as people write it: Fabric.setup."""
    return re.sub(r"[^\w.]+", "-", name.replace("::", ".")).strip("-") or "member"


def short(name):
    return name.removeprefix("levin::")


class Entity:
    """A class, function, type, variable or macro: what its XML says, and where it is shown."""

    def __init__(self, node, scope=""):
        self.node, self.kind = node, node.get("kind")
        self.id, self.scope = node.get("id"), scope
        place = node.find("location")
        self.file = place.get("file") if place is not None else ""
        # A declaration counts where it is declared, not where its body is.
        self.file = place.get("declfile", self.file) if place is not None else ""
        self.line = int(place.get("line", 0)) if place is not None else 0
        is_class = node.tag == "compounddef"
        self.name = node.findtext("compoundname") if is_class else node.findtext("name")
        self.protection = node.get("prot", "public")
        self.page = self.anchor = self.target = None

    @property
    def documented(self):
        return bool(text_of(self.node.find("briefdescription")) or text_of(self.node.find("detaileddescription")))

    @property
    def title(self):
        return short(self.name if self.node.tag == "compounddef" or not self.scope else f"{self.scope}::{self.name}")

    def first_sentence(self):
        for part in ("briefdescription", "detaileddescription"):
            for para in self.node.findall(f"{part}/para"):
                words = " ".join("".join(_until_block(para)).split())
                if words:
                    return re.split(r"(?<=[.!?])\s|: *$", words)[0].rstrip(":")
        return ""


def _until_block(para):
    yield para.text or ""
    for child in para:
        if child.tag in BLOCKS:
            return
        yield "".join(child.itertext())
        yield child.tail or ""


class Reference:
    """Everything documented in the headers. `excludes(path)` says which headers are no part of the surface."""

    def __init__(self, xml_folder, excludes=lambda path: False):
        self.classes, self.loose, self.entities = [], [], {}
        self.members = defaultdict(list)  # id of a class -> its members
        for path in sorted(Path(xml_folder).glob("*.xml")):
            if path.name in ("index.xml", "Doxyfile.xml"):
                continue
            for node in ElementTree.parse(path).getroot().findall("compounddef"):
                self._read(node)
        self.classes = [c for c in self.classes if not excludes(c.file) and self._shown(c)]
        self.loose = [e for e in self.loose if not excludes(e.file) and e.documented]
        self._place()

    def _read(self, node):
        kind, name = node.get("kind"), node.findtext("compoundname")
        if kind in CLASSES and not re.search(r"detail::|@|<|anonymous", name):
            entity = Entity(node)
            self.classes.append(entity)
            for member in node.findall("sectiondef/memberdef"):
                found = Entity(member, name)
                if found.protection == "public" or (found.protection == "protected" and found.documented):
                    if found.kind != "friend":
                        self.members[entity.id].append(found)
            self.members[entity.id].sort(key=lambda member: member.line)
        elif kind == "namespace" and "detail" not in name and name.split("::")[0] == "levin":
            self.loose += [Entity(member, name) for member in node.findall("sectiondef/memberdef")]
        elif kind == "file":
            self.loose += [Entity(m) for m in node.findall("sectiondef/memberdef") if m.get("kind") == "define"]

    def _shown(self, entity):
        public = entity.protection == "public" and entity.name.startswith("levin::")
        return public and (entity.documented or any(member.documented for member in self.members[entity.id]))

    def _place(self):
        self.pages = defaultdict(list)  # header -> entities, in their order
        for entity in sorted(self.classes + self.loose, key=lambda e: (e.file, e.line)):
            self.pages[entity.file].append(entity)
        for file, entities in self.pages.items():
            used, targets = set(), set()
            for entity in entities:
                entity.page, entity.anchor = page_of(file), _unused(place(entity.title), used)
                # Sphinx's own targets have no capital letters.
                entity.target = entity.page.replace("/", "-") + "--" + _unused(anchor(entity.title), targets)
                self.entities[entity.id] = entity
                for member in self.members.get(entity.id, []):
                    member.page, member.anchor = entity.page, _unused(f"{entity.anchor}.{place(member.name)}", used)
                    self.entities[member.id] = member

    def find(self, name):
        """The class of that qualified name."""
        for entity in self.classes:
            if entity.name == name:
                return entity
        raise SystemExit(f"site: Doxygen's XML has no class {name}; is it still declared under that name, with a comment?")

    def names(self):
        """{what a page may call it: (page, anchor)} for what has one meaning."""
        found = defaultdict(set)
        for entity in self.classes + self.loose:
            for name in {entity.title, f"levin::{entity.title}"}:
                found[name].add((entity.page, entity.anchor))
            for member in self.members.get(entity.id, []):
                found[f"{entity.title}::{member.name}"].add((member.page, member.anchor))
        links = {name: sorted(places)[0] for name, places in found.items() if len({page for page, _ in places}) == 1}
        links.update({file: (page_of(file), "") for file in self.pages})
        return links


def _unused(name, used):
    number, result = 1, name
    while result in used:
        number += 1
        result = f"{name}-{number}"
    used.add(result)
    return result


def page_of(header):
    return "api/" + header.removeprefix("levin/").removesuffix(".h").removesuffix(".cuh")


def _plain_first_words(text):
    """Doxygen links every word that is also a class. "Steps between two rows" means no class: a sentence begins there."""
    return re.sub(r'(^|[.:;] )<a [^>]*>([A-Z][a-z]+)</a>', r"\1\2", text)


class Writer:
    """Turns Doxygen's elements into HTML within Markdown, with links as seen from one page."""

    def __init__(self, reference, page):
        self.reference, self.page = reference, page

    def link(self, refid, inner):
        target = self.reference.entities.get(refid)
        if target is None:
            return inner
        path = os.path.relpath(target.page, os.path.dirname(self.page)) + ".html"
        return f'<a href="{path}#{target.anchor}">{inner}</a>'

    def inline(self, node):
        parts = [html.escape(node.text or "", quote=False)]
        for child in node:
            parts += [self.element(child), html.escape(child.tail or "", quote=False)]
        return "".join(parts)

    def element(self, node):
        inner = self.inline(node)
        if node.tag == "ref":
            return self.link(node.get("refid"), inner)
        if node.tag == "computeroutput":
            return f'<code class="docutils literal">{inner}</code>'
        if node.tag in ("bold", "emphasis"):
            return f"<{'b' if node.tag == 'bold' else 'em'}>{inner}</{'b' if node.tag == 'bold' else 'em'}>"
        if node.tag == "ulink":
            return f'<a href="{html.escape(node.get("url"))}">{inner}</a>'
        return {"sp": " ", "linebreak": "<br>", "ndash": "–", "mdash": "—"}.get(node.tag, inner)

    def description(self, entity):
        """Markdown: paragraphs as HTML, code as fenced blocks, which Sphinx colours."""
        blocks = []
        for part in ("briefdescription", "detaileddescription"):
            for para in entity.node.findall(f"{part}/para"):
                blocks += self.blocks(para)
        return "\n\n".join(blocks)

    def blocks(self, para):
        result, words = [], [html.escape(para.text or "", quote=False)]

        def flush():
            text = " ".join("".join(words).split())
            words.clear()
            if text:
                result.append(f"<p>{_plain_first_words(text)}</p>")

        for child in para:
            if child.tag in BLOCKS:
                flush()
                result.extend(self.block(child))
            else:
                words.append(self.element(child))
            words.append(html.escape(child.tail or "", quote=False))
        flush()
        return result

    def block(self, node):
        if node.tag in ("verbatim", "programlisting"):
            code = "".join(node.itertext()) if node.tag == "verbatim" else "\n".join(_code(line) for line in node)
            lines = code.strip("\n").splitlines()
            margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
            language = "cpp" if code.isascii() else "none"  # what is not ASCII shows output
            return [f"```{language}\n" + "\n".join(line[margin:] for line in lines) + "\n```"]
        if node.tag in ("itemizedlist", "orderedlist"):
            name = "ul" if node.tag == "itemizedlist" else "ol"
            items = "".join("<li>" + _plain_first_words(" ".join(self.inline(p) for p in item.findall("para"))) + "</li>" for item in node)
            return [f"<{name}>{' '.join(items.split())}</{name}>"]
        return [block for para in node.findall("para") for block in self.blocks(para)]

    # Declarations

    def code(self, node):
        """A type or a default value, as Doxygen spaces it, put into the tree's own style."""
        if node is None:
            return ""
        text = " ".join(self.inline(node).split())
        text = re.sub(r"&lt; ", "&lt;", text)
        text = re.sub(r" &gt;", "&gt;", text)
        return re.sub(r" (&amp;|\*)", r"\1", text)

    def parameters(self, member):
        result = []
        for param in member.node.findall("param"):
            kind, name = self.code(param.find("type")), param.findtext("declname") or param.findtext("defname") or ""
            value = self.code(param.find("defval"))
            result.append((kind + (f" {name}" if name else "") + (f" = {value}" if value else "")).strip())
        return [p for p in result if p != "void"]

    def template(self, node):
        found = node.find("templateparamlist")
        if found is None:
            return ""
        parts = []
        for param in found.findall("param"):
            kind, name = self.code(param.find("type")), param.findtext("declname") or ""
            value = self.code(param.find("defval"))
            parts.append((kind + (f" {name}" if name else "") + (f" = {value}" if value else "")).strip())
        requires = self.code(node.find("requiresclause"))
        return f"template &lt;{', '.join(parts)}&gt;" + (f" requires {requires}" if requires else "")

    def signature(self, member):
        node, kind = member.node, member.kind
        template = self.template(node)
        if kind == "define":
            names = ", ".join(p.findtext("defname") or "" for p in node.findall("param"))
            return f"#define <b>{member.name}</b>" + (f"({names})" if names else "")
        if kind == "typedef":
            return (template + "\n" if template else "") + f"using <b>{member.name}</b> = {self.code(node.find('type'))}"
        if kind == "variable":
            value = self.code(node.find("initializer"))
            return f"{self.code(node.find('type'))} <b>{member.name}</b>" + (f" {value}" if value else "")
        if kind == "enum":
            values = ", ".join(v.findtext("name") for v in node.findall("enumvalue"))
            return f"enum{' class' if node.get('strong') == 'yes' else ''} <b>{member.name}</b> {{ {values} }}"
        tail = re.sub(r"^.*\)", "", " ".join((node.findtext("argsstring") or "").split()))
        tail = re.sub(r"\s*=\s*(0|delete|default)", r" = \1", tail)
        words = [word for word, said in (("static", node.get("static") == "yes"), ("explicit", node.get("explicit") == "yes"),
                                         ("virtual", node.get("virt") in ("virtual", "pure-virtual") and "override" not in tail)) if said]
        words.append(self.code(node.find("type")))
        head = " ".join(word for word in words if word)
        head += (" " if head else "") + f"<b>{html.escape(member.name)}</b>"
        args = self.parameters(member)
        line = f"{head}({', '.join(args)}){tail}"
        if len(re.sub(r"<[^>]+>|&\w+;", "x", line)) > WIDTH and len(args) > 1:
            line = f"{head}(\n    " + ",\n    ".join(args) + f"){tail}"
        return (template + "\n" if template else "") + line

    def head_of_class(self, entity):
        template = self.template(entity.node)
        bases = []
        for base in entity.node.findall("basecompoundref"):
            name = html.escape(text_of(base).replace("< ", "<").replace(" >", ">"), quote=False)
            if base.get("prot") == "public" and "detail" not in name:
                bases.append(self.link(base.get("refid"), name))
        return (template + "\n" if template else "") + f"{entity.kind} <b>{html.escape(entity.name, quote=False)}</b>" + (
            f" : {', '.join(bases)}" if bases else "")

    def declaration(self, members):
        lines = []
        for member in members:
            ident = f' id="{member.anchor}"' if member.anchor else ""
            lines.append(f"<span{ident}>{self.signature(member)}</span>")
        return '<pre class="declaration">' + "\n".join(lines) + "</pre>"

    def table(self, fields, head="field"):
        """Name and type share a column, so that the table fits on a phone."""
        rows = []
        for field in fields:
            meaning = " ".join(re.sub(r"</?p>", " ", self.description(field)).split())
            kind, value = self.code(field.node.find("type")), re.sub(r"^= ?", "", self.code(field.node.find("initializer")))
            default = f"<code>{value}</code>" if value not in ("", "{}") else "not set" if "optional" in kind else ""
            rows.append(f'<tr id="{field.anchor}">\n<td><code class="name">{field.name}</code> <code class="type">{kind}</code></td>\n'
                        f"<td>{default}</td>\n<td>{meaning}</td>\n</tr>")
        heads = "\n".join(f"<th>{text}</th>" for text in (f"{head}, type", "default", "meaning"))
        return ('<div class="table-wrapper docutils container"><table class="docutils align-default fields"><thead><tr>\n'
                + heads + "\n</tr></thead><tbody>\n" + "\n".join(rows) + "\n</tbody></table></div>")

    # Sections

    def section(self, entity, level=2):
        lines = [f"({entity.target})=", f"{'#' * level} {entity.title}", f'<span id="{entity.anchor}"></span>', ""]
        if entity.node.tag == "compounddef":
            lines += [f'<pre class="declaration">{self.head_of_class(entity)}</pre>', "", self.description(entity), ""]
            lines += self.members(entity, level + 1)
        else:
            lines += [self.declaration([entity]), "", self.description(entity), ""]
            if entity.kind == "enum" and any(text_of(v.find("briefdescription")) for v in entity.node.findall("enumvalue")):
                lines += self.enum_values(entity)
        return lines

    def enum_values(self, entity):
        items = "".join(f"<li><code>{v.findtext('name')}</code> {' '.join(self.inline(p) for p in v.findall('briefdescription/para'))}</li>"
                        for v in entity.node.findall("enumvalue"))
        return [f"<ul>{' '.join(items.split())}</ul>", ""]

    def members(self, entity, level):
        own = entity.name.split("::")[-1]
        members = [m for m in self.reference.members[entity.id] if not _is_noise(m, own)]
        fields = [m for m in members if m.kind == "variable" and m.node.get("static") != "yes"]
        lines = [self.table(fields), ""] if fields else []
        others = defaultdict(list)
        for member in members:
            if member not in fields:
                others[member.name].append(member)
        plain = []
        for name, overloads in others.items():
            if any(m.documented for m in overloads) and name != own:
                lines += [f"{'#' * level} {_escape(name)}", ""]
                for overload in overloads:
                    lines += [self.declaration([overload]), "", self.description(overload), ""]
            elif any(m.documented for m in overloads):
                for overload in overloads:
                    lines += [self.declaration([overload]), "", self.description(overload), ""]
            else:
                plain += overloads
        if plain:
            constructors = [m for m in plain if m.name == own]
            rest = [m for m in plain if m.name != own]
            lines += [self.declaration(constructors + rest), ""]
        return lines


def _code(line):
    parts = []
    for node in line.iter():
        if node.tag == "sp":
            parts.append(" ")
        elif node.text:
            parts.append(node.text)
        if node is not line and node.tail:
            parts.append(node.tail)
    return "".join(parts)


def _escape(name):
    return re.sub(r"([*_\[\]<>])", r"\\\1", name)


def _is_noise(member, own):
    """What a reader of a class does not look for: destructors, assignment, what is deleted, what no comment explains."""
    arguments = member.node.findtext("argsstring") or ""
    if member.name.startswith("~") or member.name == "operator=" or "=delete" in arguments.replace(" ", ""):
        return True
    if member.protection == "protected" and not member.documented:
        return True
    if member.name == own and re.match(rf"^\((const )?{re.escape(own)} ?&&?\w*( ?other)?\)", arguments):
        return True
    return "override" in arguments and not member.documented or member.name.startswith("any_")


def index_of(reference, more=()):
    """{page: [(name, class or "", anchor)]}: what the search offers by name, and the index lists."""
    found = defaultdict(list)
    for entity in reference.classes + reference.loose:
        found[entity.page].append((entity.title, "", entity.anchor))
        for member in reference.members.get(entity.id, []):
            own = entity.name.split("::")[-1]
            if not _is_noise(member, own) and member.name != own:
                found[entity.page].append((member.name, entity.title, member.anchor))
    for page, name in more:
        for member in reference.members[reference.find(name).id]:
            found[page].append((member.name, f"option of {short(name).removesuffix('Options')}", member.anchor))
    return {page: list(dict.fromkeys(entries)) for page, entries in found.items()}


def write_pages(reference, out, floors):
    """Writes api/... under `out`; `floors` is {folder: what lives there}, in the order of the floors."""
    folders = defaultdict(list)
    for header in reference.pages:
        parts = header.split("/")
        folders[parts[1] if len(parts) > 2 else ""].append(header)
    order = [f for f in floors if f in folders] + sorted(set(folders) - set(floors))
    for header, entities in reference.pages.items():
        page = page_of(header)
        writer = Writer(reference, page)
        lines = [f"# {header.removeprefix('levin/')}", "", f'```cpp\n#include "{header}"\n```', ""]
        for entity in entities:
            lines += writer.section(entity)
        _write(out / f"{page}.md", lines)
    index = ["# API reference", "", "Every class, function and option that the headers document, made from their comments. One page for each header. {ref}`All names <genindex>` stand in one list, too.", ""]
    index += ["| folder | what lives there |", "|---|---|"]
    index += [f"| [{folder}](folder_{folder}.md) | {floors.get(folder, '')} |" for folder in order if folder]
    index += ["", "```{toctree}", ":hidden:", ""] + [f"folder_{folder}" for folder in order if folder] + ["```", ""]
    _write(out / "api/index.md", index)
    for folder in order:
        lines = [f"# {folder}", "", floors.get(folder, ""), "", "| header | has |", "|---|---|"]
        for header in sorted(folders[folder]):
            relative = page_of(header).removeprefix("api/")
            entities = [e for e in reference.pages[header] if e.kind in CLASSES] or reference.pages[header]
            names = ", ".join(f"[{_escape(e.title)}](#{e.target})" for e in entities)
            lines.append(f"| [{header.removeprefix('levin/')}]({relative}.md) | {names} |")
        lines += ["", "```{toctree}", ":hidden:", ""] + [page_of(h).removeprefix("api/") for h in sorted(folders[folder])] + ["```", ""]
        _write(out / f"api/folder_{folder}.md", lines)


def write_options(reference, out, page, name, title, lines):
    """A page with the fields of one options struct as a table."""
    entity = reference.find(name)
    writer = Writer(reference, page)
    fields = [m for m in reference.members[entity.id] if m.kind == "variable"]
    missing = [f.name for f in fields if not f.documented]
    if missing:
        raise SystemExit(f"site: {entity.file}: fields of {name} without a /// line: {', '.join(missing)}")
    _write(out / f"{page}.md", [f"# {title}", "", *lines, "", writer.table(fields, "option"), ""])


def _write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
