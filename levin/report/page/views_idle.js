// What limits a step: roofline, idle time, critical path, estimates.

function view_roofline(report, trace) {
  if (!trace) return [no_trace("The roofline is")];
  const roof = trace.roofline, points = list(roof && roof.points);
  if (!roof || !points.length) {
    return [
      empty_view(
        "No roofline",
        "It needs the shapes of the operators and a device whose peaks are known.",
        "--trainer.profiler.record_shapes true",
      ),
    ];
  }
  const source = (key) => source_of(trace.sources, "roofline." + key), out = [];
  if (roof.peak_tflops > 0 && roof.peak_gbps > 0) {
    out.push(
      card(
        "Roofline",
        `${points.length} kernels; the area of a circle is its time`,
        roofline_chart(roof, points),
        legend([["bound by compute", 0], ["bound by memory", 1], ["roof of the device", 5]]),
      ),
    );
  }
  const mfu = trace.mfu;
  if (mfu) {
    out.push(
      card(
        "Model FLOPs utilization",
        mfu.device,
        pairs([
          ["FLOPs of a step", format.flops(mfu.flops_per_step), source_of(trace.sources, "mfu")],
          ["Step", format.time(mfu.step_us)],
          ["Achieved", format.number(mfu.achieved_tflops) + " TFLOP/s"],
          ["Peak", `${format.number(mfu.peak_tflops)} TFLOP/s ${mfu.precision || ""}`],
          ["MFU", format.percent(mfu.mfu_percent), source_of(trace.sources, "mfu")],
        ]),
      ),
    );
  }
  out.push(sized(
    card(
      "Kernels under the roof",
      null,
      data_table({
        caption: "Roofline",
        rows: points,
        sort: "total_us",
        filter: ["name", "operator", "bound"],
        file: "roofline",
        columns: [
          ["name", "Kernel", "name"],
          ["operator", "Operator", "name"],
          ["calls", "Calls", "count"],
          ["total_us", "Time", "time", true],
          ["flops", "FLOPs", "flops"],
          ["bytes", "Bytes", "bytes"],
          ["flops_per_byte", "FLOP per byte", "number"],
          ["tflops", "TFLOP/s", "number"],
          ["roof_tflops", "Roof", "number"],
          ["roof_percent", "Of the roof", "percent"],
          ["bound", "Bound by", "text"],
        ].map(column_from(source, "")),
      }),
    ),
    "long",
  ));
  return out;
}

function view_idle(report, trace) {
  if (!trace) return [no_trace("Idle time is")];
  const out = [],
    idle = trace.idle,
    path = trace.critical_path,
    what_if = list(trace.what_if),
    source = (key) => source_of(trace.sources, key);
  const cause_color = { dataloader: 5, checkpoint: 8, sync: 9, host: 6, communication: 3, launch: 4, other: 7 };
  if (idle && isNumber(idle.total_us) && idle.total_us > 0) {
    const causes = list(idle.causes).map((c) => ({
      name: c.name,
      value: c.total_us,
      color: cause_color[c.id] ?? 7,
      plain: true,
    }));
    out.push(
      card(
        "Idle time",
        `${format.time(idle.total_us)}, ${format.percent(idle.percent)} of the steps, in which no device works`,
        el(
          "div",
          { "data-source": source("idle.causes") },
          bar_list(causes, (v) => `${format.time(v)}, ${format.percent(100 * v / idle.total_us)}`),
        ),
      ),
    );
  }
  if (what_if.length) {
    const now = trace.overview && trace.overview.average_us;
    out.push(
      card(
        "What if",
        "the step without one of its costs, estimated",
        data_table({
          caption: "What if",
          plain: true,
          rows: [{ title: "as it is", step_us: now, saved_us: null, speedup: 1 }, ...what_if],
          columns: [["title", "Change", "text"], ["step_us", "Step", "time", true], ["saved_us", "Saved", "time"], [
            "speedup",
            "Speedup",
            "times",
          ]].map(column_from(source, "what_if.")),
        }),
      ),
    );
  }
  if (trace.launches) out.push(...launch_cards(trace.launches, source));
  if (path && list(path.segments).length) out.push(path_card(path, source));
  if (!out.length) {
    return [empty_view(
      "No idle time",
      trace.has_device
        ? "The device worked all the time of the steps."
        : "Idle time is that of a GPU; this trace has no device work.",
      trace.has_device ? null : "--trainer.accelerator cuda " + kProfile,
    )];
  }
  return out;
}

function launch_cards(view, source) {
  const of = (v) => `${format.count(v)}, ${format.percent(100 * v / (view.launches || 1))}`;
  const streams = list(view.streams);
  return [
    card(
      "Launches",
      `${format.count(view.launches)} calls that launched work`,
      pairs([
        ["Calls on the host", `${format.time(view.call_us)}, ${format.time(view.mean_call_us)} each`, source("launches")],
        ["Delay until the work starts", `${format.time(view.mean_delay_us)} on average, ${format.time(view.median_delay_us)} in the middle, at most ${format.time(view.longest_delay_us)}`, source("launches")],
        ["Work shorter than its call", of(view.shorter_than_call), source("launches")],
        ["Calls over 50 \u00b5s", of(view.slow_calls), source("launches")],
        ["Work later than 100 \u00b5s", of(view.late), source("launches")],
      ]),
      streams.length
        ? line_chart({
          label: "Launches in the queue",
          series: streams.slice(0, 8).map((s, i) => ({
            name: `stream ${s.stream}`,
            color: [0, 5, 6, 3, 1, 8, 4, 9][i],
            points: list(s.queue && s.queue.time_us).map((t, k) => [t, s.queue.length[k]]),
          })),
          zero: true,
          write_x: format.time,
          write_y: format.count,
          height: 200,
        })
        : null,
      data_table({
        caption: "Queues of streams",
        plain: true,
        rows: streams,
        columns: [["device", "Device", "id"], ["stream", "Stream", "id"], ["launches", "Launches", "count"], [
          "mean_queue",
          "Mean queue",
          "number",
        ], ["longest_queue", "Longest queue", "count"], ["full_us", `Time at ${format.count(view.full_queue)}`, "time"]].map(
          column_from(source, "launches."),
        ),
      }),
    ),
    sized(
      table_card("Launches by name", null, {
        rows: list(view.rows),
        sort: "launches",
        columns: [
          ["name", "Kernel, copy or fill", "name"],
          ["launches", "Launches", "count", true],
          ["mean_call_us", "Mean call", "time"],
          ["mean_delay_us", "Mean delay", "time"],
          ["mean_work_us", "Mean work", "time"],
          ["shorter_than_call", "Shorter than its call", "count"],
        ].map(column_from(source, "launches.")),
      }),
      "long",
    ),
  ];
}

function path_card(path, source) {
  const segments = list(path.segments),
    names = [...new Set(segments.map((s) => s.name))],
    kinds = [...new Set(segments.map((s) => s.kind))],
    place = new Map(names.map((n, i) => [n, i]));
  const view = new SpanView({
    label: "Critical path",
    names,
    kinds,
    height: () => 90,
    write: format.time,
    color: (_, kind) => color_of_kind(kinds[kind]),
    describe: (d) => [["Kind", d.kind], ["Duration", format.time(d.duration)], ["Start", format.time(d.start)]],
    lanes: [{
      name: "",
      plain: true,
      rows: 1,
      spans: segments.map((s) => [0, s.start_us, s.dur_us, place.get(s.name), kinds.indexOf(s.kind), 1]),
    }],
  });
  const parts = list(path.parts).map((p) => ({ name: p.kind, value: p.total_us, color: color_of_kind(p.kind) }));
  return sized(
    card(
      "Critical path",
      `${path.step}: ${format.time(path.total_us)}; what would have to be faster for the step to be faster`,
      share_bar(parts, format.time, "Critical path"),
      legend(
        parts.filter((p) => p.value > 0).map(
          (p) => [p.name, p.color, format.percent(100 * p.value / (path.total_us || 1))],
        ),
      ),
      el("div", { class: "screen-only", style: { margin: ".9rem 0" } }, view.node),
      data_table({
        caption: "Segments of the critical path",
        rows: segments,
        filter: ["name", "kind"],
        file: "critical_path",
        columns: [["name", "Span", "name"], ["kind", "Kind", "text"], ["start_us", "Start", "time"], [
          "dur_us",
          "Duration",
          "time",
          true,
        ]].map(([key, label, kind, bar]) => ({ key, label, kind, bar, source: source("critical_path.segments") })),
      }),
    ),
    "long",
  );
}
