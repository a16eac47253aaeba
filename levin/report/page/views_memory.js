// Memory and modules.

function view_memory(report, trace) {
  if (!trace) return [no_trace("Memory comes")];
  const memory = trace.memory || {}, devices = list(memory.devices);
  if (!devices.length && !memory.predicted && !list(memory.per_unit).length) {
    return [
      empty_view("No memory events", "The trace has no [memory] event.", "--trainer.profiler.profile_memory true"),
    ];
  }
  const place = el("div", { style: { display: "flex", "flex-direction": "column", gap: "1.1rem" } }),
    start = Math.max(0, devices.findIndex((d) => d.device !== "CPU"));
  const fill = (i) => place.replaceChildren(...memory_cards(trace, memory, devices[i]));
  fill(start);
  return [devices.length > 1 ? choice("Device", devices.map((d) => d.device), start, fill) : null, place].filter(
    Boolean,
  );
}

function memory_cards(trace, memory, device) {
  const source = (key) => source_of(trace.sources, "memory." + key),
    out = [],
    predicted = memory.predicted,
    per_unit = list(memory.per_unit);
  if (device) {
    const tiles = [],
      add = (label, value, under, key) => {
        const [v, u] = split_unit(format.bytes(value));
        tiles.push(tile(label, v, u, under, source(key)));
      };
    add(
      "Peak allocated",
      device.peak_allocated_bytes,
      isNumber(device.peak_us) ? "at " + format.time(device.peak_us) : null,
      "devices.peak_allocated_bytes",
    );
    if (device.peak_reserved_bytes > 0) {
      add("Peak reserved", device.peak_reserved_bytes, "by the allocator", "devices.peak_reserved_bytes");
    }
    if (isNumber(device.capacity_bytes) && device.capacity_bytes > 0) {
      add(
        "Capacity",
        device.capacity_bytes,
        format.percent(100 * device.peak_allocated_bytes / device.capacity_bytes) + " used at the peak",
        "devices.capacity_bytes",
      );
    }
    if (predicted && isNumber(predicted.peak_bytes)) {
      add(
        "Predicted peak",
        predicted.peak_bytes,
        device.peak_allocated_bytes > 0
          ? `${signed_percent(100 * (predicted.peak_bytes / device.peak_allocated_bytes - 1))} against measured`
          : null,
        "predicted",
      );
    }
    out.push(el("div", { class: "tiles" }, tiles));
    const c = device.curve || {}, points = (key) => list(c.time_us).map((x, i) => [x, list(c[key])[i]]);
    if (list(c.time_us).length) {
      const levels = [];
      if (predicted && predicted.peak_bytes > 0) {
        levels.push({ value: predicted.peak_bytes, name: "predicted " + format.bytes(predicted.peak_bytes), color: 5 });
      }
      if (device.capacity_bytes > 0 && device.peak_allocated_bytes > 0.5 * device.capacity_bytes) {
        levels.push({ value: device.capacity_bytes, name: "capacity", color: 8 });
      }
      const series = [{ name: "allocated", points: points("allocated_bytes"), color: 0, steps: true }];
      if (list(c.reserved_bytes).some((v) => v > 0)) {
        series.push({ name: "reserved", points: points("reserved_bytes"), color: 7, steps: true });
      }
      out.push(
        card(
          "Memory over time",
          device.device,
          line_chart({
            label: "Memory over time",
            series,
            levels,
            area: true,
            base: 1024,
            write_x: format.time,
            write_y: format.bytes,
            height: 280,
          }),
          legend(series.map((s) => [s.name, s.color])),
        ),
      );
    }
  }
  const halves = [];
  if (predicted && list(predicted.parts).length) {
    halves.push(
      sized(
        card(
          "Predicted parts",
          format.bytes(predicted.peak_bytes) + " at the peak",
          bar_list(
            predicted.parts.map((p, i) => ({ name: p.name, value: p.bytes, color: i % 7, plain: true })),
            format.bytes,
          ),
        ),
        "w6",
      ),
    );
  }
  if (per_unit.length) {
    halves.push(
      sized(
        card(
          "Per unit",
          "allocated while it ran",
          bar_list(per_unit.map((u) => ({ name: u.name, value: u.allocated_bytes, color: 1 })), format.bytes, 12),
        ),
        "w6",
      ),
    );
  }
  if (halves.length) out.push(el("div", { class: "columns" }, halves));
  if (!device) return out;
  const table = (title, note, rows, sort, filter, columns) =>
    rows.length &&
    out.push(
      sized(
        table_card(title, note, { rows, sort, filter, columns: columns.map(column_from(source, "devices.")) }),
        "long",
      ),
    );
  table("Memory statistics", "of operators", list(device.statistics), "self_size_increase_bytes", ["operator"], [
    ["operator", "Operator", "name"],
    ["calls", "Calls", "count"],
    ["size_increase_bytes", "Size increase", "bytes"],
    ["self_size_increase_bytes", "Self size increase", "bytes"],
    ["allocation_count", "Allocations", "count"],
    ["self_allocation_count", "Self allocations", "count"],
    ["allocation_size_bytes", "Allocated", "bytes"],
    ["self_allocation_size_bytes", "Self allocated", "bytes", true],
  ]);
  table(
    "Memory events",
    device.events_left_out > 0
      ? `the largest; ${format.count(device.events_left_out)} smaller ones are left out`
      : null,
    list(device.events),
    "size_bytes",
    ["operator"],
    [
      ["operator", "Operator", "name"],
      ["size_bytes", "Size", "bytes", true],
      ["allocation_us", "Allocated at", "time"],
      ["release_us", "Released at", "time"],
      ["duration_us", "Duration", "time"],
    ],
  );
  return out;
}

const signed_percent = (v) => (v > 0 ? "+" : v < 0 ? "\u2212" : "\u00b1") + Math.abs(v).toFixed(1) + " %";

function view_modules(report, trace) {
  if (!trace) return [no_trace("Modules come")];
  const modules = list(trace.modules);
  if (!modules.length) {
    return [empty_view("No modules", "The trace has no span of a unit.", "--trainer.profiler.with_modules true")];
  }
  const metrics = [["Device time", "device_total_us", format.time], ["Host time", "host_total_us", format.time], [
    "FLOPs",
    "flops",
    format.flops,
  ]].filter((m) => modules.some((r) => r[m[1]] > 0));
  const place = el("div", { class: "screen-only" }),
    detail = el("div", { class: "detail" }, "Click a unit to zoom to it; 0 shows all.");
  const fill = (i) => place.replaceChildren(flame_graph(modules, metrics[i][1], metrics[i][2], detail));
  if (metrics.length) fill(0);
  const source = (key) => source_of(trace.sources, "modules." + key);
  const columns = [
    ["name", "Unit", "name"],
    ["occurrences", "Calls", "count"],
    ["operators", "Operators", "count"],
    ["device_total_us", "Device total", "time", true],
    ["device_self_us", "Device self", "time"],
    ["forward_device_us", "Forward, device", "time"],
    ["backward_device_us", "Backward, device", "time"],
    ["host_total_us", "Host total", "time"],
    ["host_self_us", "Host self", "time"],
    ["flops", "FLOPs", "flops"],
    ["bytes", "Bytes", "bytes"],
  ]
    .filter(([key]) => key === "name" || modules.some((r) => isNumber(r[key]) && r[key] !== 0))
    .map(([key, label, kind, bar]) => ({
      key,
      label,
      kind,
      bar,
      source: source(key),
      value: key === "name" ? (r) => "\u00a0".repeat(2 * Math.max(0, r.depth || 0)) + r.name : undefined,
    })).map((c) => (c.value ? c : (delete c.value, c)));
  return [
    metrics.length
      ? card(
        "Flame graph",
        "the units of the model; width is what they took",
        { right: choice("Width", metrics.map((m) => m[0]), 0, fill) },
        place,
        detail,
      )
      : null,
    sized(card("Units", null, data_table({ caption: "Units", rows: modules, file: "modules", columns })), "long"),
  ].filter(Boolean);
}

/** Children lie under their parent, from its left edge on; what is left of its width is its own. */
function flame_graph(modules, key, write, detail) {
  const n = modules.length, children = Array.from({ length: n }, () => []), roots = [], width = new Float64Array(n);
  modules.forEach((m, i) => (m.parent >= 0 && m.parent < i ? children[m.parent] : roots).push(i));
  for (let i = n - 1; i >= 0; --i) {
    width[i] = Math.max(
      modules[i][key] || 0,
      children[i].reduce((a, k) => a + width[k], 0),
    );
  }
  const spans = [], left = new Float64Array(n);
  let at = 0, rows = 1;
  for (const root of roots) {
    left[root] = at;
    at += width[root];
  }
  for (let i = 0; i < n; ++i) {
    let x = left[i];
    for (const k of children[i]) {
      left[k] = x;
      x += width[k];
    }
    const depth = Math.max(0, modules[i].depth || 0);
    rows = Math.max(rows, depth + 1);
    if (width[i] > 0) spans.push([depth, left[i], width[i], i, 0, 1]);
  }
  // Under its parent a unit needs the rest of its path alone.
  const names = modules.map((m) => {
    const above = m.parent >= 0 && modules[m.parent] ? modules[m.parent].name + "." : "";
    return above && m.name.startsWith(above) ? m.name.slice(above.length) : m.name;
  });
  const colors = names.map(color_of_name);
  const view = new SpanView({
    label: "Flame graph",
    title: (d) => modules[d.span[3]].name,
    lanes: [{ name: "", plain: true, rows, spans }],
    names,
    kinds: ["module"],
    low: 0,
    high: at,
    height: () => 460,
    write,
    color: (name) => colors[name],
    describe: (d) => {
      const m = modules[d.span[3]];
      return [[key === "flops" ? "FLOPs" : "Time", write(m[key])], [
        "Of all",
        format.percent(100 * (m[key] || 0) / (at || 1)),
      ], ["Calls", format.count(m.occurrences)]];
    },
    select: (hit) => {
      if (!hit || !hit.row) return detail.replaceChildren("Click a unit to zoom to it; 0 shows all.");
      const m = modules[hit.row.name[hit.i]];
      view.show(hit.row.start[hit.i], hit.row.end[hit.i]);
      detail.replaceChildren(
        el("b", { class: "mono" }, m.name),
        el(
          "div",
          null,
          [
            `device ${format.time(m.device_total_us)} (self ${format.time(m.device_self_us)})`,
            `host ${format.time(m.host_total_us)}`,
            `forward ${format.time(m.forward_device_us)}`,
            `backward ${format.time(m.backward_device_us)}`,
            isNumber(m.flops) ? format.flops(m.flops) + "FLOP" : "",
          ].filter(Boolean).join("  \u00b7  "),
        ),
      );
    },
  });
  return view.node;
}
