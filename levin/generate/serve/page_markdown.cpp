#include "levin/generate/serve/page.h"

namespace levin::serve {

std::string_view page_markdown() {
  return R"('use strict';
// Markdown as elements and texts: nothing is ever parsed as HTML, and only links of known kinds are links.

// The blocks of a text.
function markdown(text) {
  const all = document.createDocumentFragment();
  blocks(all, text.split('\n'), 0);
  return all;
}
function element(name, style) {
  const made = document.createElement(name);
  if (style) made.className = style;
  return made;
}
const fence = /^ {0,3}(`{3,}|~{3,}) *([^`\s]*)[^`]*$/;
const heading = /^ {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*$/;
const rule = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const quote = /^ {0,3}> ?/;
const item = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const table_rule = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const blank = /^[ \t]*$/;
function begins_block(line) {
  return fence.test(line) || heading.test(line) || rule.test(line) || quote.test(line) || item.test(line);
}
function blocks(into, lines, depth) {
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    let found;
    if (blank.test(line)) {
      ++i;
    } else if ((found = fence.exec(line))) {
      i = code_block(into, lines, i, found);
    } else if ((found = heading.exec(line))) {
      inline(into.appendChild(element('h' + Math.min(found[1].length + 2, 6))), found[2]);
      ++i;
    } else if (rule.test(line)) {
      into.append(element('hr'));
      ++i;
    } else if (quote.test(line) && depth < 8) {
      const inner = [];
      for (; i < lines.length && quote.test(lines[i]); ++i) inner.push(lines[i].replace(quote, ''));
      blocks(into.appendChild(element('blockquote')), inner, depth + 1);
    } else if (item.test(line) && depth < 8) {
      i = list(into, lines, i, depth);
    } else if (line.includes('|') && i + 1 < lines.length && lines[i + 1].includes('|') && table_rule.test(lines[i + 1])) {
      i = table(into, lines, i);
    } else {
      const words = [line];
      for (++i; i < lines.length && !blank.test(lines[i]) && !begins_block(lines[i]); ++i) words.push(lines[i]);
      inline(into.appendChild(element('p')), words.join('\n'));
    }
  }
}
function code_block(into, lines, begin, opened) {
  const mark = opened[1], inner = [];
  let i = begin + 1;
  for (; i < lines.length; ++i) {
    const line = lines[i].trim();
    if (line.length >= mark.length && line[0] === mark[0] && line.split('').every(c => c === mark[0])) break;
    inner.push(lines[i]);
  }
  const box = element('pre');
  if (opened[2]) box.dataset.language = opened[2];
  box.appendChild(element('code')).textContent = inner.join('\n');
  into.append(box);
  return i + 1;
}
// Items of one indentation; what is deeper belongs to the item before it.
function list(into, lines, begin, depth) {
  const first = item.exec(lines[begin]), indent = first[1].length, ordered = /\d/.test(first[2]);
  const made = element(ordered ? 'ol' : 'ul');
  if (ordered) made.start = parseInt(first[2], 10);
  let i = begin, inner = null;
  const close = () => { if (inner) blocks(made.appendChild(element('li')), inner, depth + 1); };
  for (; i < lines.length; ++i) {
    const found = item.exec(lines[i]);
    if (found && found[1].length <= indent + 1) {
      if (found[1].length < indent || /\d/.test(found[2]) !== ordered || rule.test(lines[i])) break;
      close();
      inner = [lines[i].slice(found[0].length)];
    } else if (blank.test(lines[i])) {
      const next = lines[i + 1];
      if (next === undefined || !(item.test(next) || /^ {2,}\S/.test(next))) break;
      inner.push('');
    } else if (/^ {2,}/.test(lines[i])) {
      inner.push(lines[i].replace(new RegExp('^ {0,' + (indent + first[2].length + 1) + '}'), ''));
    } else if (begins_block(lines[i]) || inner[inner.length - 1] === '') {
      break;
    } else {
      inner.push(lines[i]);
    }
  }
  close();
  into.append(made);
  return i;
}
function cells(line) {
  const all = line.trim().replace(/^\||(?<!\\)\|$/g, '').split(/(?<!\\)\|/);
  return all.map(cell => cell.trim().replaceAll('\\|', '|'));
}
function table(into, lines, begin) {
  const made = element('table'), sides = cells(lines[begin + 1]);
  const row = (where, name, line) => {
    const one = where.appendChild(element('tr')), all = cells(line);
    sides.forEach((side, k) => {
      const cell = one.appendChild(element(name));
      if (/-:$/.test(side)) cell.className = side[0] === ':' ? 'center' : 'right';
      inline(cell, all[k] || '');
    });
  };
  row(made.appendChild(element('thead')), 'th', lines[begin]);
  const body = made.appendChild(element('tbody'));
  let i = begin + 2;
  for (; i < lines.length && lines[i].includes('|') && !blank.test(lines[i]); ++i) row(body, 'td', lines[i]);
  into.appendChild(element('div', 'wide')).append(made);
  return i;
}

// Code, bold, italic, struck out, links and escapes of one block; the rest is text.
const marks = /\\([\\`*_{}[\]()#+.!~|>-])|(`+)([^`]+|[^`].*?[^`])\2(?!`)|(\*\*|(?<!\w)__)(?=\S)([^\n]{0,1000}?\S)\4|(\*|(?<!\w)_)(?=[^\s*_])([^\n*_]{0,1000}[^\s*_])\6(?![A-Za-z0-9])|~~(?=\S)([^\n~]+)~~|!?\[([^\[\]\n]*)\]\(\s*<?([^\s()<>]+(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:\s+'[^'\n]*'|\s+"[^"\n]*")?\s*\)/g;
function inline(into, text, depth = 0) {
  if (text.length > 20000 || depth > 8) {
    into.append(text);
    return;
  }
  let last = 0;
  for (const found of text.matchAll(marks)) {
    const [whole, escaped, , code, , strong, , italic, struck, label, address] = found;
    if (found.index > last) into.append(text.slice(last, found.index));
    last = found.index + whole.length;
    if (escaped) into.append(escaped);
    else if (code !== undefined) into.appendChild(element('code')).textContent = code;
    else if (strong) inline(into.appendChild(element('strong')), strong, depth + 1);
    else if (italic) inline(into.appendChild(element('em')), italic, depth + 1);
    else if (struck) inline(into.appendChild(element('del')), struck, depth + 1);
    else if (/^(?:https?|mailto):/i.test(address)) {
      const link = into.appendChild(element('a'));
      link.href = address;
      link.target = '_blank';
      link.rel = 'noopener noreferrer nofollow';
      inline(link, label || address, depth + 1);
    } else {
      into.append(whole);
    }
  }
  if (last < text.length) into.append(text.slice(last));
}

// A text that grows. Blocks that cannot change any more stay as they are; only the last one is made again, at most once
// for each frame, and less often where that takes long.
class GrowingText {
  constructor(where, plain, shown) {
    this.where = where;
    this.plain = plain;
    this.shown = shown;
    this.text = '';
    this.done = 0;
    this.tail = where.appendChild(element('div'));
    this.due = 0;
    this.pause = 0;
    this.ended = false;
  }
  add(more) {
    this.text += more;
    if (!this.due) this.due = setTimeout(() => requestAnimationFrame(() => this.show()), this.pause);
  }
  end() {
    clearTimeout(this.due);
    this.show();
    this.ended = true;
  }
  // Behind the last empty line that is not within a fence, and before a line that continues no list.
  settled() {
    let mark = '', at = this.done, safe = this.done, empty = false;
    for (;;) {
      const end = this.text.indexOf('\n', at);
      const line = this.text.slice(at, end < 0 ? undefined : end);
      if (empty && /^\S/.test(line) && (end >= 0 || line.length > 10) && !item.test(line)) safe = at;
      if (end < 0) return safe;
      const found = fence.exec(line);
      if (!mark && found) mark = found[1];
      else if (mark && line.trim().startsWith(mark) && line.trim().split('').every(c => c === mark[0])) mark = '';
      empty = !mark && blank.test(line);
      at = end + 1;
    }
  }
  show() {
    if (this.ended) return;
    this.due = 0;
    const began = performance.now();
    const follow = at_end();
    if (this.plain) {
      this.tail.append(this.text.slice(this.done));
      this.done = this.text.length;
    } else {
      const settled = this.settled();
      if (settled > this.done) this.tail.before(markdown(this.text.slice(this.done, settled)));
      this.done = settled;
      this.tail.replaceChildren(markdown(this.text.slice(this.done)));
    }
    this.shown(follow);
    this.pause = Math.min(1000, 4 * (performance.now() - began));
  }
}
)";
}

}  // namespace levin::serve
