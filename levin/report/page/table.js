// A table of any length: rows outside the window of its scroller are two empty rows, so that 100,000 rows cost as much as 50.
const kRowHeight = 30, kPrintedRows = 25;
// Known before any table hears of it: views are drawn, too, when the page is printed.
let printing = false;
addEventListener("beforeprint", () => (printing = true));
addEventListener("afterprint", () => (printing = false));

function compare_values(a, b) {
  const none = (v) => v === null || v === undefined || v === "";
  if (none(a) || none(b)) return none(a) - none(b) ? (none(a) ? "last" : "first") : 0;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

// A card with a table of its title, which also names the file that the table is saved to.
function table_card(title, note, options) {
  const file = title.toLowerCase().replaceAll(" ", "_");
  return card(title, note, data_table({ caption: title, file, ...options }));
}

/**
 * options: caption, columns [{key, label, kind, bar, source, value(row), tone(row)}], rows, sort (a key, descending), filter (keys that
 * the search reads), tools (nodes of the toolbar), file (name of the CSV), plain (short table: no toolbar), total (a last row).
 */
function data_table(options) {
  const columns = options.columns.map((c) => ({ kind: "text", value: (row) => row[c.key], ...c }));
  const numeric = (c) => !["text", "name", "yes", "id"].includes(c.kind);
  let all = options.rows,
    shown = all,
    sort = options.sort ? { key: options.sort, down: !options.ascending } : null,
    words = "";
  const maximum = new Map();
  const body = el("tbody"), count = el("span", { class: "count", role: "status" });
  const heads = columns.map((c) =>
    el(
      "th",
      { scope: "col", class: numeric(c) ? "num" : null, "data-source": c.source },
      options.plain ? c.label : el("button", {
        type: "button",
        on: {
          click: () => {
            sort = { key: c.key, down: sort && sort.key === c.key ? !sort.down : numeric(c) };
            arrange();
          },
        },
      }, c.label),
    )
  );
  const table = el(
    "table",
    { "aria-label": options.caption, "aria-rowcount": all.length + 1 },
    el("thead", null, el("tr", null, heads)),
    body,
  );
  const scroller = el("div", {
    class: "scroll",
    tabindex: options.plain ? null : 0,
    role: "region",
    "aria-label": options.caption,
  }, table);

  function cell(c, row) {
    const value = c.value(row), text = format[c.kind](value), missing = text === "";
    const tone = c.tone ? c.tone(row) : null;
    const type = c.kind === "name" || c.kind === "text" ? c.kind : numeric(c) ? "num" : "";
    const node = el("td", {
      class: [type, missing ? "missing" : "", tone || ""].join(" ").trim() || null,
      title: c.kind === "name" || (c.kind === "text" && text.length > 30) ? text : null,
    }, missing ? "\u2013" : text);
    if (c.bar && isNumber(value)) {
      node.append(
        el(
          "span",
          { class: "cell-bar", "aria-hidden": "true" },
          el("i", {
            style: { width: Math.max(0, Math.min(100, 100 * value / (maximum.get(c.key) || 1))).toFixed(1) + "%" },
          }),
        ),
      );
    }
    return node;
  }
  const line = (row, i, name) =>
    el("tr", { class: name, "aria-rowindex": i === null ? null : i + 2 }, columns.map((c) => cell(c, row)));
  const pad = (height) =>
    el(
      "tr",
      { class: "pad", "aria-hidden": "true" },
      el("td", { colspan: columns.length, style: { height: height + "px" } }),
    );

  let first = -1, last = -1;
  function draw(force) {
    let from = 0, to = shown.length;
    if (printing) to = Math.min(to, kPrintedRows);
    else if (to > 80) {
      // Steps of 6 rows: most scroll events change nothing.
      from = Math.max(0, Math.floor(scroller.scrollTop / kRowHeight / 6) * 6 - 6);
      to = Math.min(to, from + Math.ceil((scroller.clientHeight || 700) / kRowHeight) + 18);
    }
    if (!force && from === first && to === last) return;
    first = from;
    last = to;
    const rows = [];
    if (from > 0 && !printing) rows.push(pad(from * kRowHeight));
    for (let i = from; i < to; ++i) rows.push(line(shown[i], i));
    if (to < shown.length && !printing) rows.push(pad((shown.length - to) * kRowHeight));
    if (printing && to < shown.length) {
      rows.push(
        el(
          "tr",
          null,
          el("td", { colspan: columns.length, class: "missing" }, `and ${format.count(shown.length - to)} more rows`),
        ),
      );
    }
    if (!shown.length) {
      rows.push(
        el(
          "tr",
          null,
          el(
            "td",
            { colspan: columns.length, class: "missing" },
            all.length ? "No row matches the filter." : "No rows.",
          ),
        ),
      );
    }
    if (options.total) rows.push(line(options.total, null, "total"));
    body.replaceChildren(...rows);
  }
  /** Columns keep the widths of the first rows: scrolling neither moves them nor measures them again. */
  let kept = 0;
  function keep_widths() {
    const width = scroller.clientWidth;
    if (!width || kept === width) return;
    kept = width;
    table.style.tableLayout = table.style.width = "";
    heads.forEach((th) => (th.style.width = ""));
    const widths = heads.map((th) => th.offsetWidth), all_widths = table.offsetWidth;
    heads.forEach((th, i) => (th.style.width = widths[i] + "px"));
    table.style.width = all_widths + "px";
    table.style.tableLayout = "fixed";
  }
  function arrange() {
    const keys = options.filter || ["name"];
    shown = words
      ? all.filter((row) =>
        keys.some((k) => row[k] !== null && row[k] !== undefined && String(row[k]).toLowerCase().includes(words))
      )
      : all;
    const by = sort && columns.find((c) => c.key === sort.key);
    if (by) {
      shown = shown.slice().sort((a, b) => {
        const order = compare_values(by.value(a), by.value(b));
        return order === "last" ? 1 : order === "first" ? -1 : sort.down ? -order : order;
      });
    }
    if (!options.plain) {
      heads.forEach((
        th,
        i,
      ) => (by === columns[i]
        ? th.setAttribute("aria-sort", sort.down ? "descending" : "ascending")
        : th.removeAttribute("aria-sort"))
      );
    }
    columns.filter((c) => c.bar).forEach((c) =>
      maximum.set(c.key, shown.reduce((m, row) => Math.max(m, c.value(row) || 0), 0))
    );
    table.setAttribute("aria-rowcount", shown.length + 1);
    count.textContent = shown.length === all.length
      ? format.count(all.length) + (all.length === 1 ? " row" : " rows")
      : format.count(shown.length) + " of " + format.count(all.length) + " rows";
    scroller.scrollTop = 0;
    draw(true);
  }
  scroller.addEventListener("scroll", () => draw(false), { passive: true });
  if (window.ResizeObserver) {
    new ResizeObserver(() => {
      draw(false);
      if (all.length > 80) keep_widths();
    }).observe(scroller);
  }
  addEventListener("beforeprint", () => draw(true));
  addEventListener("afterprint", () => draw(true));

  const csv = () => {
    const quoted = (v) => (/^[=+@\-\t]/.test(v) && Number.isNaN(Number(v)) ? "'" + v : v).replace(/"/g, '""');
    const lines = [columns.map((c) => c.label), ...shown.map((row) => columns.map((c) => c.value(row) ?? ""))];
    return lines.map((cells) => cells.map((v) => '"' + quoted(String(v)) + '"').join(",")).join("\n") + "\n";
  };
  const search = el("input", {
    type: "search",
    placeholder: "Filter",
    "aria-label": "Filter " + options.caption,
    on: {
      input: (event) => {
        words = event.target.value.trim().toLowerCase();
        arrange();
      },
    },
  });
  const node = el(
    "div",
    { class: options.plain ? "plain" : null },
    options.plain ? null : el(
      "div",
      { class: "toolbar" },
      search,
      options.tools || null,
      count,
      el("button", {
        class: "button",
        type: "button",
        on: { click: () => save_text((options.file || "table") + ".csv", csv(), "text/csv") },
      }, "CSV"),
    ),
    scroller,
  );
  arrange();
  node.rows = (rows) => {
    all = rows;
    arrange();
  };
  return node;
}
