// Views of the time of a step: Overview, Operators, Kernels, Roofline, Idle. Each takes the report and a trace and returns nodes, or an
// empty view that says which option records what is missing.
const kProfile = "--profiler pytorch";

const no_trace = what => empty_view("No trace", `${what} of a trace, and this report has none.`, kProfile);

function view_overview(report, trace) {
  if (!trace) return [no_trace("The overview is"), ...overview_of_runs(report)];
  const source = key => source_of(trace.sources, key), o = trace.overview || {}, categories = list(o.categories);
  const out = [overview_tiles(trace, source)];
  const warnings = list(trace.warnings);
  if (warnings.length) out.push(card("Warnings", "about what was read", el("ul", { class: "advice" }, warnings.map(w => el("li", { class: "info" }, w)))));
  out.push(advice_card(trace));
  const used = categories.map(c => c.average_us > 0);
  const steps = list(trace.steps), groups = steps.slice(-120).map(s => ({ name: s.name.replace(/^ProfilerStep#/, ""), title: s.name, values: kStepKeys.map(k => s[k]) }));
  if (steps.length > 1) groups.push({ name: "average", title: "Average", values: categories.map(c => c.average_us), strong: true });
  const rows = categories.map((c, i) => ({ ...c, color: i }));
  out.push(el("div", { class: "columns" },
    Object.assign(card("Step time", steps.length > 120 ? "the last 120 steps" : "each step, and their average",
      groups.length ? stacked_bars({ label: "Time of each step by category", groups, names: kCategories, colors: [0, 1, 2, 3, 4, 5, 6, 7], write: format.time }) : el("p", { class: "keys" }, "The trace has no step."),
      legend(kCategories.map((n, i) => [n, i]).filter((_, i) => used[i]))), { className: "card w8" }),
    Object.assign(card("Execution summary", "average of a step", summary_table(rows, o, source)), { className: "card w4" })));
  out.push(...gpu_cards(trace, source));
  return out;
}

function overview_of_runs(report) { return list(report.runs).length ? [card("Training", null, el("p", null, "The curves, the configuration and the checkpoints are in the view ", el("a", { href: "#run" }, "Run"), "."))] : []; }

function overview_tiles(trace, source) {
  const o = trace.overview || {}, tiles = [], gpus = list(trace.gpu_summary), add = (label, text, under, key) => { const [v, u] = split_unit(text); tiles.push(tile(label, v, u, under, source(key))); };
  if (isNumber(o.average_us)) add("Average step", format.time(o.average_us), `${format.count(o.steps)} ${o.steps === 1 ? "step" : "steps"}`, "overview.average_us");
  for (const g of gpus.slice(0, 1)) {
    const which = gpus.length > 1 ? `GPU ${g.device}` : g.name;
    if (isNumber(g.utilization_percent)) add("GPU utilization", format.percent(g.utilization_percent), which, "gpu_summary.utilization_percent");
    if (isNumber(g.sm_efficiency_percent)) add("Est. SM efficiency", format.percent(g.sm_efficiency_percent), which, "gpu_summary.sm_efficiency_percent");
    if (isNumber(g.achieved_occupancy_percent)) add("Est. occupancy", format.percent(g.achieved_occupancy_percent), which, "gpu_summary.achieved_occupancy_percent");
  }
  const tc = trace.tensor_cores;
  if (tc && isNumber(tc.time_percent) && trace.has_device) add("Tensor core time", format.percent(tc.time_percent), isNumber(tc.eligible_percent) ? `${format.percent(tc.eligible_percent)} could be` : null, "tensor_cores.time_percent");
  const mfu = trace.mfu;
  if (mfu && isNumber(mfu.mfu_percent)) add("MFU", format.percent(mfu.mfu_percent), `${digits(mfu.achieved_tflops)} of ${digits(mfu.peak_tflops)} TFLOP/s`, "mfu");
  if (!trace.has_device) {
    for (const name of ["CPU Exec", "DataLoader", "Communication"]) {
      const c = list(o.categories).find(k => k.name === name);
      if (c && c.average_us > 0) add(name, format.percent(c.percent), format.time(c.average_us) + " of a step", "overview.categories");
    }
    add("Operators", format.count(list(trace.operators).length), `${format.count(trace.events)} events`, "operators");
  }
  const memory = list(trace.memory && trace.memory.devices), device = memory.find(d => d.device !== "CPU") || memory[0];
  if (device) add("Peak memory", format.bytes(device.peak_allocated_bytes), isNumber(device.capacity_bytes) && device.capacity_bytes > 0 ? `${format.percent(100 * device.peak_allocated_bytes / device.capacity_bytes)} of ${device.device}` : device.device, "memory");
  return el("div", { class: "tiles" }, tiles);
}

function advice_card(trace) {
  const source = source_of(trace.sources, "recommendations"), advice = list(trace.recommendations);
  if (!advice.length) return card("Recommendations", null, el("p", { class: "fine" }, "\u2713 Nothing stands out: no recommendation for this trace."));
  const average = trace.overview && trace.overview.average_us, heavy = r => isNumber(r.cost_ms) && average > 0 && r.cost_ms * 1000 > 0.1 * average;
  return card("Recommendations", "the most expensive first", el("ol", { class: "advice" }, advice.map(r => el("li", { class: heavy(r) ? "high" : null },
    el("div", { class: "head" }, el("b", null, r.title), isNumber(r.cost_ms) ? el("span", { class: "cost", "data-source": source, tabindex: source ? 0 : null },
      `costs ${format.time(r.cost_ms * 1000)} of a step` + (average > 0 ? `, ${format.percent(100 * r.cost_ms * 1000 / average)}` : "")) : null),
    el("p", null, r.evidence), r.option ? el("div", { class: "set" }, "Set ", el("code", null, r.option)) : null))));
}

function summary_table(rows, overview, source) {
  const line = (c, name) => el("tr", { class: name }, el("th", { scope: "row" }, isNumber(c.color) ? [el("span", { class: "swatch b" + c.color }), "\u2002"] : null, c.name),
    el("td", { class: "num" }, format.time(c.average_us)), el("td", { class: "num" }, isNumber(c.percent) ? c.percent.toFixed(2) : ""));
  const from = source("overview.categories");
  return el("div", { class: "plain" }, el("div", { class: "scroll" }, el("table", { "aria-label": "Execution summary" },
    el("thead", null, el("tr", null, el("th", { scope: "col" }, "Category"), el("th", { scope: "col", class: "num", "data-source": from }, "Time"), el("th", { scope: "col", class: "num", "data-source": from }, "%"))),
    el("tbody", { "data-source": from }, rows.map(c => line(c, null)), line({ name: "Total", average_us: overview.average_us, percent: 100 }, "total")))));
}

function gpu_cards(trace, source) {
  const gpus = list(trace.gpu_summary);
  if (!gpus.length) return [];
  const columns = [["device", "GPU", "id"], ["name", "Name", "text"], ["memory_bytes", "Memory", "bytes"], ["compute_capability", "Compute capability", "text"], ["sm_count", "SMs", "count"], ["utilization_percent", "Utilization", "percent"],
    ["sm_efficiency_percent", "Est. SM efficiency", "percent"], ["achieved_occupancy_percent", "Est. achieved occupancy", "percent"], ["peak_allocated_bytes", "Peak allocated", "bytes"]]
    .map(([key, label, kind]) => ({ key, label, kind, source: source("gpu_summary." + key) }));
  const series = gpus.filter(g => g.utilization_curve && list(g.utilization_curve.percent).length).map((g, i) => ({ name: "GPU " + g.device, color: i % 10, steps: true,
    points: [...g.utilization_curve.percent.map((p, k) => [g.utilization_curve.start_us + k * g.utilization_curve.bucket_us, p]),
      [g.utilization_curve.start_us + g.utilization_curve.percent.length * g.utilization_curve.bucket_us, g.utilization_curve.percent[g.utilization_curve.percent.length - 1]]] }));
  return [card("GPU summary", null, data_table({ caption: "GPU summary", plain: true, columns, rows: gpus }),
    series.length ? el("div", { style: { "margin-top": "1rem" } }, el("h3", null, "Utilization over time"), line_chart({ label: "GPU utilization over time", series, height: 170, area: series.length === 1, write_x: format.time, write_y: v => v + " %", levels: [] }),
      series.length > 1 ? legend(series.map(s => [s.name, s.color])) : null) : null)];
}

function view_operators(report, trace) {
  if (!trace) return [no_trace("Operators come")];
  const by_name = list(trace.operators), by_shape = list(trace.operators_by_shape), device = trace.has_device;
  if (!by_name.length) return [empty_view("No operators", "The trace has no cpu_op span.", kProfile)];
  const source = key => source_of(trace.sources, "operators." + key);
  const columns = shape => [["name", "Name", "name"], shape && ["input_shape", "Input shape", "text"], ["calls", "Calls", "count"],
    device && ["device_self_us", "Device self", "time", true], device && ["device_total_us", "Device total", "time"], ["host_self_us", "Host self", "time", true], ["host_total_us", "Host total", "time"],
    device && ["tensor_cores_eligible", "Tensor cores eligible", "yes"], device && ["tensor_cores_self_percent", "Tensor cores self", "percent"], device && ["tensor_cores_total_percent", "Tensor cores total", "percent"],
    by_name.some(r => isNumber(r.flops)) && ["flops", "FLOPs", "flops"], by_name.some(r => r.call_stack) && ["call_stack", "Call stack", "text"]]
    .filter(Boolean).map(([key, label, kind, bar]) => ({ key, label, kind, bar, source: source(key) }));
  const place = el("div"), sort = device ? "device_self_us" : "host_self_us";
  const fill = shape => place.replaceChildren(shape && !by_shape.length ? empty_view("No shapes", "The trace has no input dimensions.", "--profiler.record_shapes true")
    : data_table({ caption: shape ? "Operators by input shape" : "Operators", columns: columns(shape), rows: shape ? by_shape : by_name, sort, filter: ["name", "input_shape", "call_stack"], file: "operators",
      tools: choice("Group by", ["By operator", "By operator and shape"], shape ? 1 : 0, i => fill(i === 1)) }));
  fill(false);
  const lists = [device && ["Device self", "device_self_us", 0], device && ["Device total", "device_total_us", 1], ["Host self", "host_self_us", 6], ["Host total", "host_total_us", 4]].filter(Boolean);
  const bars = el("div"), draw = i => bars.replaceChildren(bar_list(by_name.map(r => ({ name: r.name, value: r[lists[i][1]] || 0, color: lists[i][2] })), null, 9));
  draw(0);
  return [card("Largest operators", "share of the time of all", { right: choice("Time", lists.map(l => l[0]), 0, draw) }, bars),
    Object.assign(card("Operators", device ? "device time is that of the kernels, copies and fills that an operator launched" : "host time", place), { className: "card long" })];
}

function view_kernels(report, trace) {
  if (!trace) return [no_trace("Kernels come")];
  const by_name = list(trace.kernels), by_properties = list(trace.kernels_by_properties), transfers = list(trace.transfers), out = [];
  if (!by_name.length && !transfers.length) return [empty_view("No kernels", trace.has_device ? "The trace has device work but no kernel." : "Nothing ran on a GPU while this trace was recorded.", "--accelerator cuda " + kProfile)];
  const source = key => source_of(trace.sources, key);
  const total = by_name.reduce((a, k) => a + k.total_us, 0), core = by_name.reduce((a, k) => a + (k.tensor_cores ? k.total_us : 0), 0), comm = by_name.reduce((a, k) => a + (k.kind === "communication" ? k.total_us : 0), 0);
  if (by_name.length) {
    const columns = all => [["name", "Name", "name"], all && ["operator", "Operator", "name"], all && ["grid", "Grid", "text"], all && ["block", "Block", "text"], all && ["registers_per_thread", "Registers per thread", "count"], all && ["shared_memory_bytes", "Shared memory", "bytes"],
      ["tensor_cores", "Tensor cores", "yes"], all && ["operator_tensor_cores_eligible", "Operator eligible", "yes"], ["calls", "Calls", "count"], ["total_us", "Total", "time", true], ["mean_us", "Mean", "time"], ["max_us", "Max", "time"], ["min_us", "Min", "time"],
      ["mean_blocks_per_sm", "Mean blocks per SM", "number"], ["mean_occupancy_percent", "Mean est. occupancy", "percent"]].filter(Boolean).map(([key, label, kind, bar]) => ({ key, label, kind, bar, source: source("kernels." + key) }));
    const place = el("div");
    const fill = all => place.replaceChildren(data_table({ caption: all ? "Kernels by properties" : "Kernels", columns: columns(all), rows: all ? by_properties : by_name, sort: "total_us", filter: ["name", "operator"], file: "kernels",
      tools: choice("Group by", ["By name", "By properties"], all ? 1 : 0, i => fill(i === 1)) }));
    fill(false);
    const parts = [{ name: "Tensor cores", value: core, color: 0 }, { name: "Communication", value: comm, color: 3 }, { name: "Other kernels", value: total - core - comm, color: 7 }];
    out.push(el("div", { class: "columns" },
      Object.assign(card("Kernel time", format.time(total) + " in all", bar_list(by_name.map(k => ({ name: k.name, value: k.total_us, color: k.kind === "communication" ? 3 : k.tensor_cores ? 0 : 6 })))), { className: "card w8" }),
      Object.assign(card("Tensor cores", "share of the time of all kernels", share_bar(parts, format.time, "Kernel time"), legend(parts.filter(p => p.value > 0).map(p => [p.name, p.color, format.percent(100 * p.value / (total || 1))])), tensor_core_pairs(trace, source)), { className: "card w4" })),
    Object.assign(card("Kernels", null, place), { className: "card long" }));
  }
  if (transfers.length) {
    out.push(card("Copies and fills", "memcpy and memset on the device", data_table({ caption: "Copies and fills", plain: true, rows: transfers, columns: [["name", "Name", "name"], ["kind", "Kind", "text"], ["calls", "Calls", "count"], ["total_us", "Total", "time"], ["bytes", "Bytes", "bytes"], ["gbps", "GB/s", "number"]]
      .map(([key, label, kind]) => ({ key, label, kind, source: source("transfers." + key) })) })));
  }
  return out;
}

function tensor_core_pairs(trace, source) {
  const tc = trace.tensor_cores;
  if (!tc) return null;
  return el("div", { style: { "margin-top": ".9rem" } }, pairs([["Kernels of operators", format.percent(tc.time_percent), source("tensor_cores.time_percent")], ["Could use them", format.percent(tc.eligible_percent), source("tensor_cores.eligible_percent")],
    ["All kernels", format.percent(tc.kernel_time_percent), source("tensor_cores.kernel_time_percent")], ["By the old plugin's list", format.percent(tc.tb_compat_time_percent), source("tensor_cores.tb_compat_time_percent")]]));
}

function view_roofline(report, trace) {
  if (!trace) return [no_trace("The roofline is")];
  const roof = trace.roofline, points = list(roof && roof.points);
  if (!roof || !points.length) return [empty_view("No roofline", "It needs the shapes of the operators and a device whose peaks are known.", "--profiler.record_shapes true")];
  const source = key => source_of(trace.sources, "roofline." + key), out = [];
  if (roof.peak_tflops > 0 && roof.peak_gbps > 0) {
    out.push(card("Roofline", `${points.length} kernels; the area of a circle is its time`, roofline_chart(roof, points), legend([["bound by compute", 0], ["bound by memory", 1], ["roof of the device", 5]])));
  }
  const mfu = trace.mfu;
  if (mfu) {
    out.push(card("Model FLOPs utilization", mfu.device, pairs([["FLOPs of a step", format.flops(mfu.flops_per_step), source_of(trace.sources, "mfu")], ["Step", format.time(mfu.step_us)], ["Achieved", format.number(mfu.achieved_tflops) + " TFLOP/s"], ["Peak", `${format.number(mfu.peak_tflops)} TFLOP/s ${mfu.precision || ""}`], ["MFU", format.percent(mfu.mfu_percent), source_of(trace.sources, "mfu")]])));
  }
  out.push(Object.assign(card("Kernels under the roof", null, data_table({ caption: "Roofline", rows: points, sort: "total_us", filter: ["name", "operator", "bound"], file: "roofline", columns: [["name", "Kernel", "name"], ["operator", "Operator", "name"], ["calls", "Calls", "count"], ["total_us", "Time", "time", true], ["flops", "FLOPs", "flops"], ["bytes", "Bytes", "bytes"],
    ["flops_per_byte", "FLOP per byte", "number"], ["tflops", "TFLOP/s", "number"], ["roof_tflops", "Roof", "number"], ["roof_percent", "Of the roof", "percent"], ["bound", "Bound by", "text"]].map(([key, label, kind, bar]) => ({ key, label, kind, bar, source: source(key) })) })), { className: "card long" }));
  return out;
}

function view_idle(report, trace) {
  if (!trace) return [no_trace("Idle time is")];
  const out = [], idle = trace.idle, path = trace.critical_path, what_if = list(trace.what_if), source = key => source_of(trace.sources, key);
  const cause_color = { dataloader: 5, checkpoint: 8, sync: 9, host: 6, communication: 3, launch: 4, other: 7 };
  if (idle && isNumber(idle.total_us) && idle.total_us > 0) {
    const causes = list(idle.causes).map(c => ({ name: c.name, value: c.total_us, color: cause_color[c.id] ?? 7, plain: true }));
    out.push(card("Idle time", `${format.time(idle.total_us)}, ${format.percent(idle.percent)} of the steps, in which no device works`,
      el("div", { "data-source": source("idle.causes") }, bar_list(causes, v => `${format.time(v)}, ${format.percent(100 * v / idle.total_us)}`))));
  }
  if (what_if.length) {
    const now = trace.overview && trace.overview.average_us;
    out.push(card("What if", "the step without one of its costs, estimated", data_table({ caption: "What if", plain: true, rows: [{ title: "as it is", step_us: now, saved_us: null, speedup: 1 }, ...what_if],
      columns: [["title", "Change", "text"], ["step_us", "Step", "time", true], ["saved_us", "Saved", "time"], ["speedup", "Speedup", "times"]].map(([key, label, kind, bar]) => ({ key, label, kind, bar, source: source("what_if." + key) })) })));
  }
  if (path && list(path.segments).length) out.push(path_card(path, source));
  if (!out.length) return [empty_view("No idle time", trace.has_device ? "The device worked all the time of the steps." : "Idle time is that of a GPU; this trace has no device work.", trace.has_device ? null : "--accelerator cuda " + kProfile)];
  return out;
}

function path_card(path, source) {
  const segments = list(path.segments), names = [...new Set(segments.map(s => s.name))], kinds = [...new Set(segments.map(s => s.kind))], place = new Map(names.map((n, i) => [n, i]));
  const view = new SpanView({ label: "Critical path", names, kinds, height: () => 90, write: format.time, color: (_, kind) => color_of_kind(kinds[kind]), describe: d => [["Kind", d.kind], ["Duration", format.time(d.duration)], ["Start", format.time(d.start)]],
    lanes: [{ name: "", plain: true, rows: 1, spans: segments.map(s => [0, s.start_us, s.dur_us, place.get(s.name), kinds.indexOf(s.kind), 1]) }] });
  const parts = list(path.parts).map(p => ({ name: p.kind, value: p.total_us, color: color_of_kind(p.kind) }));
  return Object.assign(card("Critical path", `${path.step}: ${format.time(path.total_us)}; what would have to be faster for the step to be faster`, share_bar(parts, format.time, "Critical path"),
    legend(parts.filter(p => p.value > 0).map(p => [p.name, p.color, format.percent(100 * p.value / (path.total_us || 1))])), el("div", { class: "screen-only", style: { margin: ".9rem 0" } }, view.node),
    data_table({ caption: "Segments of the critical path", rows: segments, filter: ["name", "kind"], file: "critical_path", columns: [["name", "Span", "name"], ["kind", "Kind", "text"], ["start_us", "Start", "time"], ["dur_us", "Duration", "time", true]].map(([key, label, kind, bar]) => ({ key, label, kind, bar, source: source("critical_path.segments") })) })), { className: "card long" });
}
