// The timeline.

/** The lanes with one more in front of them: what the step of medium length waited for. */
function with_critical_path(t, path) {
  const segments = list(path && path.segments);
  if (!t || !segments.length) return t;
  const names = list(t.names).slice(), kinds = list(t.kinds).slice();
  const place = (all, text) => (all.includes(text) ? all.indexOf(text) : all.push(text) - 1);
  const spans = segments.map((s) => [0, s.start_us, s.dur_us, place(names, s.name), place(kinds, s.kind), 1]);
  return { ...t, names, kinds, lanes: [{ name: path.step, group: "Critical path", rows: 1, spans }, ...list(t.lanes)] };
}

function view_trace(report, trace) {
  if (!trace) return [no_trace("The timeline is")];
  const t = with_critical_path(trace.trace, trace.critical_path), lanes = list(t && t.lanes);
  if (!lanes.some((l) => list(l.spans).length)) {
    return [empty_view("No spans", "The trace has no span to draw.", kProfile)];
  }
  const names = list(t.names),
    kinds = list(t.kinds),
    colors = kinds.map(color_of_kind),
    ops = new Set(["op", "annotation", "module"].map((k) => kinds.indexOf(k)));
  const name_colors = names.map(color_of_name),
    detail = el(
      "div",
      { class: "detail", "aria-live": "polite" },
      "Click a span to see all of its kind; double-click to zoom to it.",
    );
  const totals = (index) => {
    let count = 0, sum = 0;
    for (const lane of view.lanes) {
      for (const row of lane.rows) {
        for (let i = 0; i < row.name.length; ++i) {
          if (row.name[i] === index) {
            count += row.count[i];
            sum += row.end[i] - row.start[i];
          }
        }
      }
    }
    return [count, sum];
  };
  const select = (hit) => {
    if (!hit || !hit.row) {
      return detail.replaceChildren("Click a span to see all of its kind; double-click to zoom to it.");
    }
    const d = view.describe(hit), [count, sum] = totals(hit.row.name[hit.i]);
    detail.replaceChildren(
      el("b", { class: "mono" }, d.name),
      el(
        "div",
        null,
        [
          d.kind,
          `${d.lane.group} \u00b7 ${d.lane.name}`,
          `start ${format.time(d.start)}`,
          `duration ${format.time(d.duration)}`,
        ].join("  \u00b7  "),
      ),
      el(
        "div",
        null,
        d.count > 1 ? `${format.count(d.count)} spans are drawn as one here, named after the longest. ` : "",
        `All of this name in the picture: ${format.count(count)} spans, ${format.time(sum)}.`,
      ),
    );
  };
  const view = new SpanView({
    label: "Timeline",
    lanes,
    names,
    kinds,
    wheel: true,
    select,
    low: 0,
    high: trace.duration_us > 0 ? trace.duration_us : undefined,
    height: () => Math.max(320, innerHeight - 300),
    write: format.time,
    color: (name, kind) => (ops.has(kind) && kinds[kind] !== "annotation" ? name_colors[name] : colors[kind]),
    marks: list(trace.steps).map((s) => s.start_us),
    moved: (from, to) => remember("t", [from, to].map((v) => Math.round(v)).join("-")),
    describe: (d) => [["Duration", format.time(d.duration)], ["Start", format.time(d.start)], ["Kind", d.kind], [
      "Lane",
      `${d.lane.group} \u00b7 ${d.lane.name}`,
    ], ...(d.count > 1 ? [`${format.count(d.count)} spans drawn as one`] : [])],
  });
  const found = el("span", { class: "keys", role: "status" }),
    input = el("input", {
      type: "search",
      placeholder: "Find a span ( / )",
      "aria-label": "Find a span",
      on: {
        input: () => {
          const n = view.search(input.value);
          found.textContent = input.value.trim() ? `${format.count(n)} found` : "";
          remember("find", input.value.trim());
        },
        keydown: (event) => {
          if (event.key === "Enter") view.next(event.shiftKey ? -1 : 1);
        },
      },
    });
  const button = (label, name, f) =>
    el("button", { class: "button", type: "button", "aria-label": name, on: { click: f } }, label);
  const hash = hash_options(), range = /^(\d+)-(\d+)$/.exec(hash.t || "");
  if (range) {
    view.from = Number(range[1]);
    view.to = Math.max(view.from + 1, Number(range[2]));
  }
  if (hash.find) {
    input.value = hash.find;
    view.search(hash.find);
  }
  const shown = [...new Set(lanes.flatMap((l) => list(l.spans).slice(0, 3000).map((s) => s[4])))].filter((k) =>
    !ops.has(k) || kinds[k] === "annotation"
  );
  const out = card(
    "Timeline",
    `${format.count(trace.events)} events in ${format.time(trace.duration_us)}` +
      (t.bucket_us > 0 ? `; spans shorter than ${format.time(t.bucket_us)} are joined` : ""),
    el(
      "div",
      { class: "toolbar" },
      input,
      button("\u2039", "previous", () => view.next(-1)),
      button("\u203a", "next", () => view.next(1)),
      found,
      el(
        "span",
        { class: "count tools" },
        button("\u2212", "zoom out", () => view.zoom(1.6, view.width / 2)),
        button("+", "zoom in", () => view.zoom(0.6, view.width / 2)),
        button("All", "show all", () => view.show(view.low, view.high)),
      ),
    ),
    view.node,
    legend([...shown.map((k) => [kinds[k], colors[k]]), ["operators: a colour for each name", 6]]),
    detail,
    el(
      "p",
      { class: "keys" },
      el("kbd", null, "W"),
      " ",
      el("kbd", null, "S"),
      " zoom, ",
      el("kbd", null, "A"),
      " ",
      el("kbd", null, "D"),
      " move, ",
      el("kbd", null, "0"),
      " all, ",
      el("kbd", null, "F"),
      " the selected span, ",
      el("kbd", null, "N"),
      " next found; wheel zooms once the timeline has the focus (or with ",
      el("kbd", null, "Ctrl"),
      "); drag moves, ",
      el("kbd", null, "Shift"),
      "-drag measures.",
    ),
    el(
      "p",
      { class: "keys" },
      "Every event is in ",
      el("code", null, t.file || trace.file || ""),
      ", which ui.perfetto.dev opens.",
    ),
  );
  out.focus_search = () => input.focus();
  out.classList.add("screen-only");
  return [out];
}
