// Operators and kernels.

function view_operators(report, trace) {
  if (!trace) return [no_trace("Operators come")];
  const by_name = list(trace.operators), by_shape = list(trace.operators_by_shape), device = trace.has_device;
  if (!by_name.length) return [empty_view("No operators", "The trace has no cpu_op span.", kProfile)];
  const source = (key) => source_of(trace.sources, "operators." + key);
  const columns = (shape) =>
    [
      ["name", "Name", "name"],
      shape && ["input_shape", "Input shape", "text"],
      ["calls", "Calls", "count"],
      device && ["device_self_us", "Device self", "time", true],
      device && ["device_total_us", "Device total", "time"],
      ["host_self_us", "Host self", "time", true],
      ["host_total_us", "Host total", "time"],
      device && ["tensor_cores_eligible", "Tensor cores eligible", "yes"],
      device && ["tensor_cores_self_percent", "Tensor cores self", "percent"],
      device && ["tensor_cores_total_percent", "Tensor cores total", "percent"],
      by_name.some((r) => isNumber(r.flops)) && ["flops", "FLOPs", "flops"],
      by_name.some((r) => r.call_stack) && ["call_stack", "Call stack", "text"],
    ]
      .filter(Boolean).map(column_from(source, ""));
  const place = el("div"), sort = device ? "device_self_us" : "host_self_us";
  const fill = (shape) =>
    place.replaceChildren(
      shape && !by_shape.length
        ? empty_view("No shapes", "The trace has no input dimensions.", "--trainer.profiler.record_shapes true")
        : data_table({
          caption: shape ? "Operators by input shape" : "Operators",
          columns: columns(shape),
          rows: shape ? by_shape : by_name,
          sort,
          filter: ["name", "input_shape", "call_stack"],
          file: "operators",
          tools: choice("Group by", ["By operator", "By operator and shape"], shape ? 1 : 0, (i) => fill(i === 1)),
        }),
    );
  fill(false);
  const lists = [device && ["Device self", "device_self_us", 0], device && ["Device total", "device_total_us", 1], [
    "Host self",
    "host_self_us",
    6,
  ], ["Host total", "host_total_us", 4]].filter(Boolean);
  const bars = el("div"),
    draw = (i) =>
      bars.replaceChildren(
        bar_list(by_name.map((r) => ({ name: r.name, value: r[lists[i][1]] || 0, color: lists[i][2] })), null, 9),
      );
  draw(0);
  return [
    card("Largest operators", "share of the time of all", {
      right: choice(
        "Time",
        lists.map((l) => l[0]),
        0,
        draw,
      ),
    }, bars),
    sized(
      card(
        "Operators",
        device ? "device time is that of the kernels, copies and fills that an operator launched" : "host time",
        place,
      ),
      "long",
    ),
    ...annotation_cards(trace),
  ];
}

/** Ranges that the program named, with the device work that was launched in them. */
function annotation_cards(trace) {
  const rows = list(trace.annotations);
  if (!rows.length) return [];
  const source = (key) => source_of(trace.sources, key), device = rows.some((r) => r.device_total_us > 0);
  return [
    sized(
      table_card("Annotations", "ranges of the program", {
        rows,
        sort: device ? "device_total_us" : "host_us",
        columns: [
          ["name", "Name", "name"],
          ["occurrences", "Occurrences", "count"],
          device && ["device_self_us", "Device self", "time"],
          device && ["device_total_us", "Device total", "time", true],
          device && ["launches", "Work launched", "count"],
          ["host_us", "Host", "time", !device],
        ].filter(Boolean).map(column_from(source, "annotations.")),
      }),
      "long",
    ),
  ];
}

function view_kernels(report, trace) {
  if (!trace) return [no_trace("Kernels come")];
  const by_name = list(trace.kernels),
    by_properties = list(trace.kernels_by_properties),
    transfers = list(trace.transfers),
    out = [];
  if (!by_name.length && !transfers.length) {
    return [empty_view(
      "No kernels",
      trace.has_device
        ? "The trace has device work but no kernel."
        : "Nothing ran on a GPU while this trace was recorded.",
      "--trainer.accelerator cuda " + kProfile,
    )];
  }
  const source = (key) => source_of(trace.sources, key);
  const total = by_name.reduce((a, k) => a + k.total_us, 0),
    core = by_name.reduce((a, k) => a + (k.tensor_cores ? k.total_us : 0), 0),
    comm = by_name.reduce((a, k) => a + (k.kind === "communication" ? k.total_us : 0), 0);
  if (by_name.length) {
    const columns = (all) =>
      [
        ["name", "Name", "name"],
        all && ["operator", "Operator", "name"],
        all && ["grid", "Grid", "text"],
        all && ["block", "Block", "text"],
        all && ["registers_per_thread", "Registers per thread", "count"],
        all && ["shared_memory_bytes", "Shared memory", "bytes"],
        ["tensor_cores", "Tensor cores", "yes"],
        all && ["operator_tensor_cores_eligible", "Operator eligible", "yes"],
        ["calls", "Calls", "count"],
        ["total_us", "Total", "time", true],
        ["mean_us", "Mean", "time"],
        ["max_us", "Max", "time"],
        ["min_us", "Min", "time"],
        ["mean_blocks_per_sm", "Mean blocks per SM", "number"],
        ["mean_occupancy_percent", "Mean est. occupancy", "percent"],
      ].filter(Boolean).map(column_from(source, "kernels."));
    const place = el("div");
    const fill = (all) =>
      place.replaceChildren(
        data_table({
          caption: all ? "Kernels by properties" : "Kernels",
          columns: columns(all),
          rows: all ? by_properties : by_name,
          sort: "total_us",
          filter: ["name", "operator"],
          file: "kernels",
          tools: choice("Group by", ["By name", "By properties"], all ? 1 : 0, (i) => fill(i === 1)),
        }),
      );
    fill(false);
    const parts = [{ name: "Tensor cores", value: core, color: 0 }, { name: "Communication", value: comm, color: 3 }, {
      name: "Other kernels",
      value: total - core - comm,
      color: 7,
    }];
    out.push(
      el(
        "div",
        { class: "columns" },
        sized(
          card(
            "Kernel time",
            format.time(total) + " in all",
            bar_list(
              by_name.map((k) => ({
                name: k.name,
                value: k.total_us,
                color: k.kind === "communication" ? 3 : k.tensor_cores ? 0 : 6,
              })),
            ),
          ),
          "w8",
        ),
        sized(
          card(
            "Tensor cores",
            "share of the time of all kernels",
            share_bar(parts, format.time, "Kernel time"),
            legend(
              parts.filter((p) => p.value > 0).map(
                (p) => [p.name, p.color, format.percent(100 * p.value / (total || 1))],
              ),
            ),
            tensor_core_pairs(trace, source),
          ),
          "w4",
        ),
      ),
      sized(card("Kernels", null, place), "long"),
    );
  }
  if (transfers.length) {
    out.push(
      card(
        "Copies and fills",
        "memcpy and memset on the device",
        data_table({
          caption: "Copies and fills",
          plain: true,
          rows: transfers,
          columns: [
            ["name", "Name", "name"],
            ["kind", "Kind", "text"],
            ["calls", "Calls", "count"],
            ["total_us", "Total", "time"],
            ["bytes", "Bytes", "bytes"],
            ["gbps", "GB/s", "number"],
          ]
            .map(column_from(source, "transfers.")),
        }),
      ),
    );
  }
  return out;
}

function tensor_core_pairs(trace, source) {
  const tc = trace.tensor_cores;
  if (!tc) return null;
  return el(
    "div",
    { style: { "margin-top": ".9rem" } },
    pairs([
      ["Kernels of operators", format.percent(tc.time_percent), source("tensor_cores.time_percent")],
      ["Could use them", format.percent(tc.eligible_percent), source("tensor_cores.eligible_percent")],
      ["All kernels", format.percent(tc.kernel_time_percent), source("tensor_cores.kernel_time_percent")],
      [
        "By the old plugin's list",
        format.percent(tc.tb_compat_time_percent),
        source("tensor_cores.tb_compat_time_percent"),
      ],
    ]),
  );
}
