// The overview: tiles, recommendations, the time of the steps, the devices. Every view takes the report and a trace and returns nodes, or an
// empty view that says which option records what is missing.

const kProfile = "--trainer.profiler pytorch";

const no_trace = (what) => empty_view("No trace", `${what} of a trace, and this report has none.`, kProfile);

function view_overview(report, trace) {
  if (!trace) return [no_trace("The overview is"), ...overview_of_runs(report)];
  const source = (key) => source_of(trace.sources, key), o = trace.overview || {}, categories = list(o.categories);
  const out = [overview_tiles(trace, source)];
  const warnings = list(trace.warnings);
  if (warnings.length) {
    out.push(card(
      "Warnings",
      "about what was read",
      el("ul", { class: "advice" }, warnings.map((w) => el("li", { class: "info" }, w))),
    ));
  }
  out.push(advice_card(trace));
  const used = categories.map((c) => c.average_us > 0);
  const steps = list(trace.steps),
    groups = steps.slice(-120).map((s) => ({
      name: s.name.replace(/^ProfilerStep#/, ""),
      title: s.name,
      values: kStepKeys.map((k) => s[k]),
    }));
  if (steps.length > 1) {
    groups.push({
      name: "average",
      title: "Average",
      values: categories.map((c) => c.average_us),
      strong: true,
    });
  }
  // Without a device its four categories are nothing but zeros.
  const rows = categories.map((c, i) => ({ ...c, color: i })).filter((c) => trace.has_device || c.average_us > 0);
  out.push(
    el(
      "div",
      { class: "columns" },
      sized(
        card(
          "Step time",
          steps.length > 120 ? "the last 120 steps" : "each step, and their average",
          groups.length
            ? stacked_bars({
              label: "Time of each step by category",
              groups,
              names: kCategories,
              colors: [0, 1, 2, 3, 4, 5, 6, 7],
              write: format.time,
            })
            : el("p", { class: "keys" }, "The trace has no step."),
          legend(kCategories.map((n, i) => [n, i]).filter((_, i) => used[i])),
        ),
        "w8",
      ),
      sized(card("Execution summary", "average of a step", summary_table(rows, o, source)), "w4"),
    ),
  );
  out.push(...gpu_cards(trace, source));
  const facts = list(trace.facts);
  if (facts.length) {
    out.push(card("The run", "as the trace tells of it", pairs(facts.map((f) => [f.key, String(f.value)]))));
  }
  return out;
}

function overview_of_runs(report) {
  return list(report.runs).length
    ? [
      card(
        "Training",
        null,
        el(
          "p",
          null,
          "The curves, the configuration and the checkpoints are in the view ",
          el("a", { href: "#run" }, "Run"),
          ".",
        ),
      ),
    ]
    : [];
}

function overview_tiles(trace, source) {
  const o = trace.overview || {},
    tiles = [],
    gpus = list(trace.gpu_summary),
    add = (label, text, under, key) => {
      const [v, u] = split_unit(text);
      tiles.push(tile(label, v, u, under, source(key)));
    };
  if (isNumber(o.average_us)) {
    add(
      "Average step",
      format.time(o.average_us),
      `${format.count(o.steps)} ${o.steps === 1 ? "step" : "steps"}`,
      "overview.average_us",
    );
  }
  for (const g of gpus.slice(0, 1)) {
    const which = gpus.length > 1 ? `GPU ${g.device}` : g.name;
    if (isNumber(g.utilization_percent)) {
      add("GPU utilization", format.percent(g.utilization_percent), which, "gpu_summary.utilization_percent");
    }
    if (isNumber(g.sm_efficiency_percent)) {
      add("Est. SM efficiency", format.percent(g.sm_efficiency_percent), which, "gpu_summary.sm_efficiency_percent");
    }
    if (isNumber(g.achieved_occupancy_percent)) {
      add(
        "Est. occupancy",
        format.percent(g.achieved_occupancy_percent),
        which,
        "gpu_summary.achieved_occupancy_percent",
      );
    }
  }
  const tc = trace.tensor_cores;
  if (tc && isNumber(tc.time_percent) && trace.has_device) {
    add(
      "Tensor core time",
      format.percent(tc.time_percent),
      isNumber(tc.eligible_percent) ? `${format.percent(tc.eligible_percent)} could be` : null,
      "tensor_cores.time_percent",
    );
  }
  const mfu = trace.mfu;
  if (mfu && isNumber(mfu.mfu_percent)) {
    add(
      "MFU",
      format.percent(mfu.mfu_percent),
      `${digits(mfu.achieved_tflops)} of ${digits(mfu.peak_tflops)} TFLOP/s`,
      "mfu",
    );
  }
  if (!trace.has_device) {
    for (const name of ["CPU Exec", "DataLoader", "Communication"]) {
      const c = list(o.categories).find((k) => k.name === name);
      if (c && c.average_us > 0) {
        add(name, format.percent(c.percent), format.time(c.average_us) + " of a step", "overview.categories");
      }
    }
    add("Operators", format.count(list(trace.operators).length), `${format.count(trace.events)} events`, "operators");
  }
  const memory = list(trace.memory && trace.memory.devices),
    device = memory.find((d) => d.device !== "CPU") || memory[0];
  if (device) {
    add(
      "Peak memory",
      format.bytes(device.peak_allocated_bytes),
      isNumber(device.capacity_bytes) && device.capacity_bytes > 0
        ? `${format.percent(100 * device.peak_allocated_bytes / device.capacity_bytes)} of ${device.device}`
        : device.device,
      "memory",
    );
  }
  return el("div", { class: "tiles" }, tiles);
}

function advice_card(trace) {
  const source = source_of(trace.sources, "recommendations"), advice = list(trace.recommendations);
  if (!advice.length) {
    return card(
      "Recommendations",
      null,
      el("p", { class: "fine" }, "\u2713 Nothing stands out: no recommendation for this trace."),
    );
  }
  const average = trace.overview && trace.overview.average_us,
    heavy = (r) => isNumber(r.cost_ms) && average > 0 && r.cost_ms * 1000 > 0.1 * average;
  return card(
    "Recommendations",
    "the most expensive first",
    el(
      "ol",
      { class: "advice" },
      advice.map((r) =>
        el(
          "li",
          { class: heavy(r) ? "high" : null },
          el(
            "div",
            { class: "head" },
            el("b", null, r.title),
            isNumber(r.cost_ms)
              ? el(
                "span",
                { class: "cost", "data-source": source, tabindex: source ? 0 : null },
                `costs ${format.time(r.cost_ms * 1000)} of a step` +
                  (average > 0 ? `, ${format.percent(100 * r.cost_ms * 1000 / average)}` : ""),
              )
              : null,
          ),
          el("p", null, r.evidence),
          r.option ? el("div", { class: "set" }, "Set ", el("code", null, r.option)) : null,
        )
      ),
    ),
  );
}

function summary_table(rows, overview, source) {
  const line = (c, name) =>
    el(
      "tr",
      { class: name },
      el(
        "th",
        { scope: "row" },
        isNumber(c.color) ? [el("span", { class: "swatch b" + c.color }), "\u2002"] : null,
        c.name,
      ),
      el("td", { class: "num" }, format.time(c.average_us)),
      el("td", { class: "num" }, isNumber(c.percent) ? c.percent.toFixed(2) : ""),
    );
  const from = source("overview.categories");
  return el(
    "div",
    { class: "plain" },
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { "aria-label": "Execution summary" },
        el(
          "thead",
          null,
          el(
            "tr",
            null,
            el("th", { scope: "col" }, "Category"),
            el("th", { scope: "col", class: "num", "data-source": from }, "Time"),
            el("th", { scope: "col", class: "num", "data-source": from }, "%"),
          ),
        ),
        el(
          "tbody",
          { "data-source": from },
          rows.map((c) => line(c, null)),
          line({ name: "Total", average_us: overview.average_us, percent: 100 }, "total"),
        ),
      ),
    ),
  );
}

function gpu_cards(trace, source) {
  const gpus = list(trace.gpu_summary);
  if (!gpus.length) return [];
  const columns = [
    ["device", "GPU", "id"],
    ["name", "Name", "text"],
    ["memory_bytes", "Memory", "bytes"],
    ["compute_capability", "Compute capability", "text"],
    ["sm_count", "SMs", "count"],
    ["utilization_percent", "Utilization", "percent"],
    ["sm_efficiency_percent", "Est. SM efficiency", "percent"],
    ["achieved_occupancy_percent", "Est. achieved occupancy", "percent"],
    ["tensor_core_time_percent", "Tensor core time", "percent"],
    ["peak_allocated_bytes", "Peak allocated", "bytes"],
  ]
    .map(column_from(source, "gpu_summary."));
  const series = gpus.filter((g) => g.utilization_curve && list(g.utilization_curve.percent).length).map((g, i) => ({
    name: "GPU " + g.device,
    color: i % 10,
    steps: true,
    points: [
      ...g.utilization_curve.percent.map((
        p,
        k,
      ) => [g.utilization_curve.start_us + k * g.utilization_curve.bucket_us, p]),
      [
        g.utilization_curve.start_us + g.utilization_curve.percent.length * g.utilization_curve.bucket_us,
        g.utilization_curve.percent[g.utilization_curve.percent.length - 1],
      ],
    ],
  }));
  return [
    card(
      "GPU summary",
      null,
      data_table({ caption: "GPU summary", plain: true, columns, rows: gpus }),
      series.length
        ? el(
          "div",
          { style: { "margin-top": "1rem" } },
          el("h3", null, "Utilization over time"),
          line_chart({
            label: "GPU utilization over time",
            series,
            height: 170,
            area: series.length === 1,
            write_x: format.time,
            write_y: (v) => v + " %",
            levels: [],
          }),
          series.length > 1 ? legend(series.map((s) => [s.name, s.color])) : null,
        )
        : null,
    ),
  ];
}
