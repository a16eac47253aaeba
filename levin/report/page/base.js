"use strict";
// Small helpers of all views. Text of a trace reaches the page by text nodes and attributes of titles alone.

/** An element; attributes that are null are left out, `on` holds listeners, children are nodes or text. */
function el(tag, attributes, ...children) {
  const svg = ["svg", "g", "rect", "path", "line", "text", "circle"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") { for (const [event, f] of Object.entries(value)) node.addEventListener(event, f); }
    else if (key === "style") {
      for (const [property, v] of Object.entries(value)) node.style.setProperty(property, v);
    } else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

const isNumber = (v) => typeof v === "number" && Number.isFinite(v);
const list = (v) => (Array.isArray(v) ? v : []);

/** Significant digits without exponents: 1234, 12.3, 0.0123. */
function digits(v, n = 3) {
  if (v === 0) return "0";
  const places = Math.max(0, n - 1 - Math.floor(Math.log10(Math.abs(v))));
  return places > 6 ? v.toExponential(n - 1) : grouped(v, places);
}

const kWriters = [];
/** A fixed number of places, thousands apart. A writer is made once: making one takes longer than all else of a cell. */
function grouped(v, places) {
  kWriters[places] = kWriters[places] ||
    new Intl.NumberFormat("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  return kWriters[places].format(v);
}

function scaled(v, units, step) {
  let unit = 0, x = Math.abs(v);
  while (x >= step && unit + 1 < units.length) {
    x /= step;
    ++unit;
  }
  return [Math.sign(v) * x, units[unit]];
}

/** How values of each kind are written; numbers of microseconds become us, ms or s. */
const format = {
  time(us) {
    if (!isNumber(us)) return "";
    if (us === 0) return "0";
    const [x, unit] = scaled(us, ["\u00b5s", "ms", "s"], 1000);
    return digits(x) + " " + unit;
  },
  us: (v) => (isNumber(v) ? grouped(v, Math.abs(v) >= 100 || Number.isInteger(v) ? 0 : 1) : ""),
  bytes(v) {
    if (!isNumber(v)) return "";
    const [x, unit] = scaled(v, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
    return (unit === "B" ? grouped(x, 0) : digits(x)) + " " + unit;
  },
  percent: (v) => (isNumber(v) ? v.toFixed(Math.abs(v) < 0.1 && v !== 0 ? 2 : 1) + " %" : ""),
  count: (v) => (isNumber(v) ? grouped(v, Number.isInteger(v) ? 0 : 1) : ""),
  number: (v) => (isNumber(v) ? digits(v, 4) : ""),
  flops(v) {
    if (!isNumber(v)) return "";
    const [x, unit] = scaled(v, ["", "K", "M", "G", "T", "P"], 1000);
    return digits(x) + (unit ? " " + unit : "");
  },
  times: (v) => (isNumber(v) ? v.toFixed(2) + "\u00d7" : ""),
  yes: (v) => (v === true ? "yes" : v === false ? "no" : ""),
  signed: (v) => (isNumber(v) ? (v > 0 ? "+" : v < 0 ? "\u2212" : "") + format.time(Math.abs(v)) : ""),
  text: (v) => (v === null || v === undefined ? "" : String(v)),
};
format.name = format.id = format.text;

/** A label of an axis: "50 ms" and not "50.0 ms". */
const label_of = (write) => (v) => write(v).replace(/(\.\d*?)0+(?=\D*$)/, "$1").replace(/\.(?=\D*$)/, "");

/** The line about a key, or about the nearest key above it ("memory" for "memory.devices.curve"). */
function source_of(sources, key) {
  for (let k = key; k; k = k.slice(0, Math.max(0, k.lastIndexOf(".")))) if (sources && sources[k]) return sources[k];
  return null;
}

const tip = {
  node: null,
  /** Lines are text, or [label, value]. */
  show(x, y, title, lines) {
    const box = tip.node || (tip.node = document.getElementById("tip"));
    box.replaceChildren(
      title ? el("b", null, title) : "",
      ...lines.map((line) =>
        Array.isArray(line)
          ? el("div", { class: "pair" }, el("span", { class: "dim" }, line[0]), el("span", null, line[1]))
          : el("div", { class: "dim" }, line)
      ),
    );
    box.hidden = false;
    const width = box.offsetWidth, height = box.offsetHeight;
    box.style.left = Math.max(8, Math.min(x + 14, innerWidth - width - 8)) + "px";
    box.style.top = (y + 18 + height > innerHeight ? Math.max(8, y - height - 12) : y + 18) + "px";
  },
  hide() {
    if (tip.node) tip.node.hidden = true;
  },
};

/** A tooltip that follows the pointer over a mark of a chart; `lines` is called when it is shown. */
function hover(node, title, lines) {
  node.addEventListener("pointermove", (event) => tip.show(event.clientX, event.clientY, title, lines()));
  node.addEventListener("pointerleave", tip.hide);
  return node;
}

/** Hovering or focusing anything with data-source says from which events it comes. */
function listen_for_sources() {
  const find = (event) => event.target instanceof Element && event.target.closest("[data-source]");
  addEventListener("pointerover", (event) => {
    const node = find(event);
    if (node) tip.show(event.clientX, event.clientY, null, ["From: " + node.dataset.source]);
  });
  addEventListener("pointerout", (event) => {
    if (find(event)) tip.hide();
  });
  addEventListener("focusin", (event) => {
    const node = find(event);
    if (!node || !node.matches(":focus-visible")) return;
    const box = node.getBoundingClientRect();
    tip.show(box.left, box.bottom - 14, null, ["From: " + node.dataset.source]);
  });
  addEventListener("focusout", tip.hide);
  addEventListener("scroll", tip.hide, { passive: true, capture: true });
}

function card(title, note, ...children) {
  const right = children.length && children[0] && children[0].right ? children.shift().right : null;
  return el(
    "section",
    { class: "card" },
    el(
      "header",
      null,
      el("h2", null, title),
      note ? el("span", { class: "note" }, note) : null,
      right ? el("div", { class: "right" }, right) : null,
    ),
    ...children,
  );
}

/** A card of a width of the grid (w4 to w8 of 12 columns), or one that may go over several pages of paper (long). */
function sized(node, name) {
  if (name) node.classList.add(name);
  return node;
}

/** Columns of a table from [key, label, kind, bar]; what a column comes from is at `prefix` + key. */
const column_from = (source, prefix) => ([key, label, kind, bar]) => ({
  key,
  label,
  kind,
  bar,
  source: source(prefix + key),
});

function tile(label, value, unit, under, source) {
  return el(
    "div",
    { class: "tile", "data-source": source, tabindex: source ? 0 : null },
    el("div", { class: "label" }, label),
    el("div", { class: "value" }, value, unit ? el("small", null, unit) : null),
    under ? el("div", { class: "under" }, under) : null,
  );
}

/** "12.3 ms" as the number and its unit, for tiles. */
const split_unit = (text) => {
  const at = text.lastIndexOf(" ");
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
};

function empty_view(title, why, option) {
  return el(
    "div",
    { class: "empty-view" },
    el("h2", null, title),
    el("p", null, why),
    option ? el("p", null, "Record it with ", el("code", null, option), ".") : null,
  );
}

function pairs(rows) {
  return el(
    "dl",
    { class: "pairs" },
    rows.filter((r) => r && r[1] !== "" && r[1] !== null && r[1] !== undefined)
      .map((
        [key, value, source],
      ) => [el("dt", null, key), el("dd", source ? { "data-source": source, tabindex: 0 } : null, value)]),
  );
}

function legend(items, toggle) {
  return el(
    "div",
    { class: "legend" },
    items.map(([name, color, value], i) => {
      const inside = [el("span", { class: "swatch b" + color }), name + (value ? " " + value : "")];
      return toggle
        ? el("button", {
          class: "item",
          type: "button",
          "aria-pressed": "true",
          on: { click: (event) => toggle(i, event.currentTarget) },
        }, inside)
        : el("span", { class: "item" }, inside);
    }),
  );
}

/** A group of buttons of which one is pressed. */
function choice(label, names, selected, pick) {
  const buttons = names.map((name, i) =>
    el("button", {
      class: "button",
      type: "button",
      "aria-pressed": String(i === selected),
      on: {
        click: () => {
          buttons.forEach((b, k) => b.setAttribute("aria-pressed", String(k === i)));
          pick(i);
        },
      },
    }, name)
  );
  return el("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}

function save_text(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

const kCategories = ["Kernel", "Memcpy", "Memset", "Communication", "Runtime", "DataLoader", "CPU Exec", "Other"];
const kStepKeys = [
  "kernel_us",
  "memcpy_us",
  "memset_us",
  "communication_us",
  "runtime_us",
  "dataloader_us",
  "cpu_exec_us",
  "other_us",
];
/** Colours of spans and of parts of a path, by kind. */
const kKindColor = {
  kernel: 0,
  memcpy: 1,
  memset: 2,
  communication: 3,
  runtime: 4,
  dataloader: 5,
  op: 6,
  cpu: 6,
  host: 7,
  annotation: 7,
  step: 9,
  optimizer: 8,
  module: 9,
  sync: 5,
  idle: 7,
  other: 7,
  launch: 4,
};
const color_of_kind = (kind) => kKindColor[kind] ?? 7;
/** The same name has the same colour in all views. */
function color_of_name(name) {
  let hash = 0;
  for (let i = 0; i < name.length; ++i) hash = (hash * 31 + name.charCodeAt(i)) | 0;
  return [0, 1, 3, 4, 5, 6, 8, 9, 2][Math.abs(hash) % 9];
}
