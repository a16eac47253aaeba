// Views of the trace itself, memory, modules, ranks, runs.

function view_trace(report, trace) {
  if (!trace) return [no_trace("The timeline is")];
  const t = trace.trace, lanes = list(t && t.lanes);
  if (!lanes.some(l => list(l.spans).length)) return [empty_view("No spans", "The trace has no span to draw.", kProfile)];
  const names = list(t.names), kinds = list(t.kinds), colors = kinds.map(color_of_kind), ops = new Set(["op", "annotation", "module"].map(k => kinds.indexOf(k)));
  const name_colors = names.map(color_of_name), detail = el("div", { class: "detail", "aria-live": "polite" }, "Click a span to see all of its kind; double-click to zoom to it.");
  const totals = index => {
    let count = 0, sum = 0;
    for (const lane of view.lanes) for (const row of lane.rows) for (let i = 0; i < row.name.length; ++i) if (row.name[i] === index) { count += row.count[i]; sum += row.end[i] - row.start[i]; }
    return [count, sum];
  };
  const select = hit => {
    if (!hit || !hit.row) return detail.replaceChildren("Click a span to see all of its kind; double-click to zoom to it.");
    const d = view.describe(hit), [count, sum] = totals(hit.row.name[hit.i]);
    detail.replaceChildren(el("b", { class: "mono" }, d.name), el("div", null, [d.kind, `${d.lane.group} \u00b7 ${d.lane.name}`, `start ${format.time(d.start)}`, `duration ${format.time(d.duration)}`].join("  \u00b7  ")),
      el("div", null, d.count > 1 ? `${format.count(d.count)} spans are drawn as one here, named after the longest. ` : "", `All of this name in the picture: ${format.count(count)} spans, ${format.time(sum)}.`));
  };
  const view = new SpanView({ label: "Timeline", lanes, names, kinds, wheel: true, select, low: 0, high: trace.duration_us > 0 ? trace.duration_us : undefined, height: () => Math.max(320, innerHeight - 300), write: format.time,
    color: (name, kind) => (ops.has(kind) && kinds[kind] !== "annotation" ? name_colors[name] : colors[kind]), marks: list(trace.steps).map(s => s.start_us), moved: (from, to) => remember("t", [from, to].map(v => Math.round(v)).join("-")),
    describe: d => [["Duration", format.time(d.duration)], ["Start", format.time(d.start)], ["Kind", d.kind], ["Lane", `${d.lane.group} \u00b7 ${d.lane.name}`], ...(d.count > 1 ? [`${format.count(d.count)} spans drawn as one`] : [])] });
  const found = el("span", { class: "keys", role: "status" }), input = el("input", { type: "search", placeholder: "Find a span ( / )", "aria-label": "Find a span", on: {
    input: () => { const n = view.search(input.value); found.textContent = input.value.trim() ? `${format.count(n)} found` : ""; remember("find", input.value.trim()); },
    keydown: event => { if (event.key === "Enter") view.next(event.shiftKey ? -1 : 1); } } });
  const button = (label, name, f) => el("button", { class: "button", type: "button", "aria-label": name, on: { click: f } }, label);
  const hash = hash_options(), range = /^(\d+)-(\d+)$/.exec(hash.t || "");
  if (range) { view.from = Number(range[1]); view.to = Math.max(view.from + 1, Number(range[2])); }
  if (hash.find) { input.value = hash.find; view.search(hash.find); }
  const shown = [...new Set(lanes.flatMap(l => list(l.spans).slice(0, 3000).map(s => s[4])))].filter(k => !ops.has(k) || kinds[k] === "annotation");
  const out = card("Timeline", `${format.count(trace.events)} events in ${format.time(trace.duration_us)}` + (t.bucket_us > 0 ? `; spans shorter than ${format.time(t.bucket_us)} are joined` : ""),
    el("div", { class: "toolbar" }, input, button("\u2039", "previous", () => view.next(-1)), button("\u203a", "next", () => view.next(1)), found,
      el("span", { class: "count tools" }, button("\u2212", "zoom out", () => view.zoom(1.6, view.width / 2)), button("+", "zoom in", () => view.zoom(0.6, view.width / 2)), button("All", "show all", () => view.show(view.low, view.high)))),
    view.node, legend([...shown.map(k => [kinds[k], colors[k]]), ["operators: a colour for each name", 6]]), detail,
    el("p", { class: "keys" }, el("kbd", null, "W"), " ", el("kbd", null, "S"), " zoom, ", el("kbd", null, "A"), " ", el("kbd", null, "D"), " move, ", el("kbd", null, "0"), " all, ", el("kbd", null, "F"), " the selected span, ", el("kbd", null, "N"), " next found; wheel zooms once the timeline has the focus (or with ",
      el("kbd", null, "Ctrl"), "); drag moves, ", el("kbd", null, "Shift"), "-drag measures."),
    el("p", { class: "keys" }, "Every event is in ", el("code", null, t.file || trace.file || ""), ", which ui.perfetto.dev opens."));
  out.focus_search = () => input.focus();
  out.classList.add("screen-only");
  return [out];
}

function view_memory(report, trace) {
  if (!trace) return [no_trace("Memory comes")];
  const memory = trace.memory || {}, devices = list(memory.devices);
  if (!devices.length && !memory.predicted && !list(memory.per_unit).length) return [empty_view("No memory events", "The trace has no [memory] event.", "--profiler.profile_memory true")];
  const place = el("div", { style: { display: "flex", "flex-direction": "column", gap: "1.1rem" } }), start = Math.max(0, devices.findIndex(d => d.device !== "CPU"));
  const fill = i => place.replaceChildren(...memory_cards(trace, memory, devices[i]));
  fill(start);
  return [devices.length > 1 ? choice("Device", devices.map(d => d.device), start, fill) : null, place].filter(Boolean);
}

function memory_cards(trace, memory, device) {
  const source = key => source_of(trace.sources, "memory." + key), out = [], predicted = memory.predicted, per_unit = list(memory.per_unit);
  if (device) {
    const tiles = [], add = (label, value, under, key) => { const [v, u] = split_unit(format.bytes(value)); tiles.push(tile(label, v, u, under, source(key))); };
    add("Peak allocated", device.peak_allocated_bytes, isNumber(device.peak_us) ? "at " + format.time(device.peak_us) : null, "devices.peak_allocated_bytes");
    if (isNumber(device.peak_reserved_bytes)) add("Peak reserved", device.peak_reserved_bytes, "by the allocator", "devices.peak_reserved_bytes");
    if (isNumber(device.capacity_bytes) && device.capacity_bytes > 0) add("Capacity", device.capacity_bytes, format.percent(100 * device.peak_allocated_bytes / device.capacity_bytes) + " used at the peak", "devices.capacity_bytes");
    if (predicted && isNumber(predicted.peak_bytes)) add("Predicted peak", predicted.peak_bytes, device.peak_allocated_bytes > 0 ? `${signed_percent(100 * (predicted.peak_bytes / device.peak_allocated_bytes - 1))} against measured` : null, "predicted");
    out.push(el("div", { class: "tiles" }, tiles));
    const c = device.curve || {}, points = key => list(c.time_us).map((x, i) => [x, list(c[key])[i]]);
    if (list(c.time_us).length) {
      const levels = [];
      if (predicted && predicted.peak_bytes > 0) levels.push({ value: predicted.peak_bytes, name: "predicted " + format.bytes(predicted.peak_bytes), color: 5 });
      if (device.capacity_bytes > 0 && device.peak_allocated_bytes > 0.5 * device.capacity_bytes) levels.push({ value: device.capacity_bytes, name: "capacity", color: 8 });
      const series = [{ name: "allocated", points: points("allocated_bytes"), color: 0, steps: true }];
      if (list(c.reserved_bytes).some(v => v > 0)) series.push({ name: "reserved", points: points("reserved_bytes"), color: 7, steps: true });
      out.push(card("Memory over time", device.device, line_chart({ label: "Memory over time", series, levels, area: true, base: 1024, write_x: format.time, write_y: format.bytes, height: 280 }), legend(series.map(s => [s.name, s.color]))));
    }
  }
  const halves = [];
  if (predicted && list(predicted.parts).length) halves.push(Object.assign(card("Predicted parts", format.bytes(predicted.peak_bytes) + " at the peak", bar_list(predicted.parts.map((p, i) => ({ name: p.name, value: p.bytes, color: i % 7, plain: true })), format.bytes)), { className: "card w6" }));
  if (per_unit.length) halves.push(Object.assign(card("Per unit", "allocated while it ran", bar_list(per_unit.map(u => ({ name: u.name, value: u.allocated_bytes, color: 1 })), format.bytes, 12)), { className: "card w6" }));
  if (halves.length) out.push(el("div", { class: "columns" }, halves));
  if (!device) return out;
  const table = (title, note, rows, sort, filter, columns) => rows.length && out.push(Object.assign(card(title, note, data_table({ caption: title, rows, sort, filter, file: title.toLowerCase().replaceAll(" ", "_"), columns: columns.map(([key, label, kind, bar]) => ({ key, label, kind, bar, source: source("devices." + key) })) })), { className: "card long" }));
  table("Memory statistics", "of operators", list(device.statistics), "self_size_increase_bytes", ["operator"], [["operator", "Operator", "name"], ["calls", "Calls", "count"], ["size_increase_bytes", "Size increase", "bytes"], ["self_size_increase_bytes", "Self size increase", "bytes"], ["allocation_count", "Allocations", "count"], ["self_allocation_count", "Self allocations", "count"],
    ["allocation_size_bytes", "Allocated", "bytes"], ["self_allocation_size_bytes", "Self allocated", "bytes", true]]);
  table("Memory events", device.events_left_out > 0 ? `the largest; ${format.count(device.events_left_out)} smaller ones are left out` : null, list(device.events), "size_bytes", ["operator"], [["operator", "Operator", "name"], ["size_bytes", "Size", "bytes", true], ["allocation_us", "Allocated at", "time"], ["release_us", "Released at", "time"], ["duration_us", "Duration", "time"]]);
  return out;
}

const signed_percent = v => (v > 0 ? "+" : v < 0 ? "\u2212" : "\u00b1") + Math.abs(v).toFixed(1) + " %";

function view_modules(report, trace) {
  if (!trace) return [no_trace("Modules come")];
  const modules = list(trace.modules);
  if (!modules.length) return [empty_view("No modules", "The trace has no span of a unit.", "--profiler.with_modules true")];
  const metrics = [["Device time", "device_total_us", format.time], ["Host time", "host_total_us", format.time], ["FLOPs", "flops", format.flops]].filter(m => modules.some(r => r[m[1]] > 0));
  const place = el("div", { class: "screen-only" }), detail = el("div", { class: "detail" }, "Click a unit to zoom to it; 0 shows all.");
  const fill = i => place.replaceChildren(flame_graph(modules, metrics[i][1], metrics[i][2], detail));
  if (metrics.length) fill(0);
  const source = key => source_of(trace.sources, "modules." + key);
  const columns = [["name", "Unit", "name"], ["occurrences", "Calls", "count"], ["operators", "Operators", "count"], ["device_total_us", "Device total", "time", true], ["device_self_us", "Device self", "time"], ["forward_device_us", "Forward, device", "time"], ["backward_device_us", "Backward, device", "time"], ["host_total_us", "Host total", "time"], ["host_self_us", "Host self", "time"], ["flops", "FLOPs", "flops"], ["bytes", "Bytes", "bytes"]]
    .filter(([key]) => key === "name" || modules.some(r => isNumber(r[key]) && r[key] !== 0))
    .map(([key, label, kind, bar]) => ({ key, label, kind, bar, source: source(key), value: key === "name" ? r => "\u00a0".repeat(2 * Math.max(0, r.depth || 0)) + r.name : undefined })).map(c => (c.value ? c : (delete c.value, c)));
  return [metrics.length ? Object.assign(card("Flame graph", "the units of the model; width is what they took", { right: choice("Width", metrics.map(m => m[0]), 0, fill) }, place, detail), {}) : null,
    Object.assign(card("Units", null, data_table({ caption: "Units", rows: modules, file: "modules", columns })), { className: "card long" })].filter(Boolean);
}

/** Children lie under their parent, from its left edge on; what is left of its width is its own. */
function flame_graph(modules, key, write, detail) {
  const n = modules.length, children = Array.from({ length: n }, () => []), roots = [], width = new Float64Array(n);
  modules.forEach((m, i) => (m.parent >= 0 && m.parent < i ? children[m.parent] : roots).push(i));
  for (let i = n - 1; i >= 0; --i) width[i] = Math.max(modules[i][key] || 0, children[i].reduce((a, k) => a + width[k], 0));
  const spans = [], left = new Float64Array(n);
  let at = 0, rows = 1;
  for (const root of roots) { left[root] = at; at += width[root]; }
  for (let i = 0; i < n; ++i) {
    let x = left[i];
    for (const k of children[i]) { left[k] = x; x += width[k]; }
    const depth = i_depth(modules, i);
    rows = Math.max(rows, depth + 1);
    if (width[i] > 0) spans.push([depth, left[i], width[i], i, 0, 1]);
  }
  const names = modules.map(m => m.name), colors = names.map(color_of_name);
  const view = new SpanView({ label: "Flame graph", lanes: [{ name: "", plain: true, rows, spans }], names, kinds: ["module"], low: 0, high: at, height: () => 460, write, color: name => colors[name],
    describe: d => { const m = modules[d.span[3]]; return [[key === "flops" ? "FLOPs" : "Time", write(m[key])], ["Of all", format.percent(100 * (m[key] || 0) / (at || 1))], ["Calls", format.count(m.occurrences)]]; },
    select: hit => {
      if (!hit || !hit.row) return detail.replaceChildren("Click a unit to zoom to it; 0 shows all.");
      const m = modules[hit.row.name[hit.i]];
      view.show(hit.row.start[hit.i], hit.row.end[hit.i]);
      detail.replaceChildren(el("b", { class: "mono" }, m.name), el("div", null, [`device ${format.time(m.device_total_us)} (self ${format.time(m.device_self_us)})`, `host ${format.time(m.host_total_us)}`, `forward ${format.time(m.forward_device_us)}`, `backward ${format.time(m.backward_device_us)}`, isNumber(m.flops) ? format.flops(m.flops) + "FLOP" : ""].filter(Boolean).join("  \u00b7  ")));
    } });
  return view.node;
}
const i_depth = (modules, i) => Math.max(0, modules[i].depth || 0);

function view_distributed(report, trace) {
  const d = report.distributed;
  if (!d || !list(d.workers).length) return [empty_view("One rank", "This view compares the ranks of a run: give the traces of all of them, e.g. the folder they are in.", "--devices 2 " + kProfile)];
  const out = [], steps = [...new Set(list(d.overlap).map(o => o.step))], source = key => source_of(trace && trace.sources, "distributed." + key);
  if (list(d.warnings).length) out.push(card("Warnings", null, el("ul", { class: "advice" }, d.warnings.map(w => el("li", { class: "info" }, w)))));
  const stack = (title, note, rows, keys, names, colors) => {
    const place = el("div"), pick = i => place.replaceChildren(stacked_bars({ label: title, names, colors, write: format.time, height: 240, groups: rows.filter(r => r.step === steps[i]).map(r => ({ name: "rank " + r.rank, values: keys.map(k => r[k]) })) }));
    const select = el("select", { "aria-label": "Step", on: { change: event => pick(Number(event.target.value)) } }, steps.map((s, i) => el("option", { value: i }, s === "all" ? "average of all steps" : s)));
    pick(0);
    return Object.assign(card(title, note, { right: select }, place, legend(names.map((n, i) => [n, colors[i]]))), { className: "card w6" });
  };
  if (steps.length) {
    out.push(el("div", { class: "columns" }, stack("Computation and communication", "each step of each rank", list(d.overlap), ["computation_us", "overlap_us", "communication_us", "other_us"], ["Computation", "Overlapped", "Communication", "Other"], [0, 9, 3, 7]),
      stack("Waiting and transfer", "a collective waits for the last rank, then moves data", list(d.waiting), ["data_transfer_us", "synchronizing_us"], ["Data transfer", "Waiting"], [1, 5])));
  }
  const table = (title, note, rows, sort, columns, plain) => rows.length && out.push(card(title, note, data_table({ caption: title, rows, sort, plain, file: title.toLowerCase().replaceAll(" ", "_"), columns: columns.map(([key, label, kind, bar]) => ({ key, label, kind, bar, source: source(key) })) })));
  table("Stragglers", "ranks that the others wait for", list(d.stragglers), "late_us", [["rank", "Rank", "id"], ["late_us", "Late", "time", true], ["times_last", "Times last", "count"], ["percent", "Of the collectives", "percent"]], true);
  table("Collectives", null, list(d.operations), "total_latency_us", [["rank", "Rank", "id"], ["name", "Name", "name"], ["calls", "Calls", "count"], ["total_bytes", "Total size", "bytes"], ["average_bytes", "Average size", "bytes"], ["total_latency_us", "Total latency", "time", true], ["average_latency_us", "Average latency", "time"], ["data_transfer_us", "Data transfer", "time"], ["average_data_transfer_us", "Average transfer", "time"]]);
  table("Ranks", null, list(d.workers), null, [["rank", "Rank", "id"], ["name", "Worker", "name"], ["device", "Device", "text"]], true);
  return out;
}

/** Last parts of paths, where they differ. */
function short_names(names) {
  const last = names.map(n => n.split("/").filter(Boolean).pop() || n);
  return new Set(last).size === names.length ? last : names;
}

function view_compare(report) {
  const c = report.comparison, names = list(c && c.names);
  if (names.length < 2) return [empty_view("One run", "This view compares two or more runs: levin report BEFORE AFTER --html report.html", null)];
  const totals = c.total || {}, out = [], short = short_names(names);
  out.push(el("div", { class: "tiles" }, names.map((name, i) => tile(name, ...split_unit(format.time(list(totals.average_us)[i])), i === 0 ? "the first run" : `${format.times(list(totals.speedup)[i])} ${list(totals.speedup)[i] >= 1 ? "as fast" : "(slower)"}`))));
  const rows = list(c.overview);
  const tone = i => row => { const v = row.values[i] - row.values[0]; return v > 0 ? "up" : v < 0 ? "down" : null; };
  const columns = [{ key: "name", label: "Category" }, ...names.flatMap((name, i) => [{ key: "t" + i, label: short[i], kind: "time", value: r => r.values[i] }, ...(i ? [{ key: "d" + i, label: "Difference", kind: "signed", value: r => r.values[i] - r.values[0], tone: tone(i) }] : [])])];
  out.push(el("div", { class: "columns" },
    Object.assign(card("Step time", "average", stacked_bars({ label: "Step time of the runs", names: kCategories, colors: [0, 1, 2, 3, 4, 5, 6, 7], write: format.time, groups: names.map((n, i) => ({ name: short[i], title: n, values: kCategories.map(k => { const r = rows.find(o => o.name === k); return r ? r.average_us[i] : 0; }) })) }),
      legend(kCategories.map((n, i) => [n, i]).filter(([n]) => rows.some(r => r.name === n && r.average_us.some(v => v > 0))))), { className: "card w5" }),
    Object.assign(card("By category", "of an average step", data_table({ caption: "Categories of the runs", plain: true, columns, rows: rows.map(r => ({ name: r.name, values: r.average_us })), total: { name: "Total", values: list(totals.average_us) } })), { className: "card w7" })));
  const differences = (title, all, parts) => {
    if (!all.length) return;
    const last = names.length - 1;
    const columns_of = [{ key: "name", label: "Name", kind: "name" },
      ...names.slice(1).map((name, k) => ({ key: "x" + (k + 1), label: names.length > 2 ? `Difference, ${short[k + 1]}` : "Difference", kind: "signed", value: r => list(r.difference_us)[k + 1], tone: r => (list(r.difference_us)[k + 1] > 0 ? "up" : list(r.difference_us)[k + 1] < 0 ? "down" : null) })),
      ...parts.flatMap(([key, label]) => names.map((_, i) => ({ key: key + i, label: `${label}, ${short[i]}`, kind: "time", value: r => list(r[key])[i] }))), ...names.map((_, i) => ({ key: "c" + i, label: `Calls, ${short[i]}`, kind: "count", value: r => list(r.calls)[i] }))];
    out.push(Object.assign(card(title, "of one step; differences are to the first run", data_table({ caption: title, rows: all.slice().sort((a, b) => Math.abs(list(b.difference_us)[last] || 0) - Math.abs(list(a.difference_us)[last] || 0)), columns: columns_of, file: title.toLowerCase() })), { className: "card long" }));
  };
  differences("Operators", list(c.operators), [["device_self_us", "Device self"], ["host_self_us", "Host self"]]);
  differences("Kernels", list(c.kernels), [["total_us", "Time"]]);
  return out;
}

function view_run(report) {
  const runs = list(report.runs);
  if (!runs.length) return [empty_view("No run", "Curves, configuration and checkpoints are read from the folder of a run: levin report RUN_FOLDER", null)];
  const out = [], names = [...new Set(runs.flatMap(r => list(r.curves).map(c => c.name)))];
  if (names.length) {
    let log = false;
    const place = el("div", { class: "columns" });
    const fill = () => place.replaceChildren(...names.map(name => {
      const series = runs.map((r, i) => ({ name: runs.length > 1 ? r.name : name, color: [0, 5, 6, 3, 1, 8, 4, 9, 2][i % 9], curve: list(r.curves).find(c => c.name === name) })).filter(s => s.curve).map(s => ({ ...s, points: list(s.curve.steps).map((x, k) => [x, s.curve.values[k]]) }));
      const last = series.map(s => s.points[s.points.length - 1]).filter(Boolean);
      return Object.assign(card(name, last.length === 1 ? `last ${format.number(last[0][1])}` : null, line_chart({ label: name, series, zero: false, log: log && series.every(s => s.points.every(p => p[1] > 0)), write_x: v => format.count(v), write_y: v => (v === 0 ? "0" : format.number(v)), height: 210 }), series.length > 1 ? legend(series.map(s => [s.name, s.color])) : null), { className: names.length > 2 ? "card w4" : names.length > 1 ? "card w6" : "card" });
    }));
    fill();
    out.push(choice("Scale", ["Linear", "Logarithmic"], 0, i => { log = i === 1; fill(); }), place);
  }
  for (const run of runs) {
    const head = runs.length > 1 ? ` of ${run.name}` : "";
    const two = (title, rows) => (rows.length ? Object.assign(card(title + head, null, data_table({ caption: title + head, plain: rows.length < 15, rows, filter: ["key", "value"], file: title.toLowerCase(), columns: [{ key: "key", label: "Name", kind: "name" }, { key: "value", label: "Value", kind: "text" }] })), { className: "card w6" }) : null);
    const cards = [two("Configuration", list(run.configuration)), two("Environment", list(run.environment))].filter(Boolean);
    if (cards.length) out.push(el("div", { class: "columns" }, cards));
    if (list(run.checkpoints).length) out.push(card("Checkpoints" + head, run.path, data_table({ caption: "Checkpoints" + head, plain: run.checkpoints.length < 20, rows: run.checkpoints, filter: ["path"], file: "checkpoints", columns: [["path", "File", "name"], ["bytes", "Size", "bytes"], ["step", "Step", "count"], ["time", "Written", "text"]].map(([key, label, kind]) => ({ key, label, kind })) })));
  }
  return out;
}
