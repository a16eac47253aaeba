// Ranks, runs, and their comparison.

function view_distributed(report, trace) {
  const d = report.distributed;
  if (!d || !list(d.workers).length) {
    return [
      empty_view(
        "One rank",
        "This view compares the ranks of a run: give the traces of all of them, e.g. the folder they are in.",
        "--trainer.devices 2 " + kProfile,
      ),
    ];
  }
  const out = [],
    steps = [...new Set(list(d.overlap).map((o) => o.step))],
    source = (key) => source_of(trace && trace.sources, "distributed." + key);
  if (list(d.warnings).length) {
    out.push(
      card("Warnings", null, el("ul", { class: "advice" }, d.warnings.map((w) => el("li", { class: "info" }, w)))),
    );
  }
  const stack = (title, note, rows, keys, names, colors) => {
    const place = el("div"),
      pick = (i) =>
        place.replaceChildren(
          stacked_bars({
            label: title,
            names,
            colors,
            write: format.time,
            height: 240,
            groups: rows.filter((r) => r.step === steps[i]).map((r) => ({
              name: "rank " + r.rank,
              values: keys.map((k) => r[k]),
            })),
          }),
        );
    const select = el(
      "select",
      { "aria-label": "Step", on: { change: (event) => pick(Number(event.target.value)) } },
      steps.map((s, i) => el("option", { value: i }, s === "all" ? "average of all steps" : s)),
    );
    pick(0);
    return sized(card(title, note, { right: select }, place, legend(names.map((n, i) => [n, colors[i]]))), "w6");
  };
  if (steps.length) {
    out.push(
      el(
        "div",
        { class: "columns" },
        stack(
          "Computation and communication",
          "each step of each rank",
          list(d.overlap),
          ["computation_us", "overlap_us", "communication_us", "other_us"],
          ["Computation", "Overlapped", "Communication", "Other"],
          [0, 9, 3, 7],
        ),
        stack(
          "Waiting and transfer",
          "a collective waits for the last rank, then moves data",
          list(d.waiting),
          ["data_transfer_us", "synchronizing_us"],
          ["Data transfer", "Waiting"],
          [1, 5],
        ),
      ),
    );
  }
  const table = (title, note, rows, sort, columns, plain) =>
    rows.length &&
    out.push(
      table_card(title, note, { rows, sort, plain, columns: columns.map(column_from(source, "")) }),
    );
  table("Stragglers", "ranks that the others wait for", list(d.stragglers), "late_us", [
    ["rank", "Rank", "id"],
    ["late_us", "Late", "time", true],
    ["times_last", "Times last", "count"],
    ["percent", "Of the collectives", "percent"],
  ], true);
  table("Collectives", null, list(d.operations), "total_latency_us", [
    ["rank", "Rank", "id"],
    ["name", "Name", "name"],
    ["calls", "Calls", "count"],
    ["total_bytes", "Total size", "bytes"],
    ["average_bytes", "Average size", "bytes"],
    ["total_latency_us", "Total latency", "time", true],
    ["average_latency_us", "Average latency", "time"],
    ["data_transfer_us", "Data transfer", "time"],
    ["average_data_transfer_us", "Average transfer", "time"],
  ]);
  table("Ranks", null, list(d.workers), null, [["rank", "Rank", "id"], ["name", "Worker", "name"], [
    "device",
    "Device",
    "text",
  ]], true);
  return out;
}

/** Paths without the folders that all of them share at their ends: "fp32" of "fp32/levin_logs/version_0". */
function short_names(names) {
  const parts = names.map((n) => n.split("/").filter(Boolean));
  const same = (at) => parts.every((p) => p.length > 1 && p.at(at) === parts[0].at(at));
  while (same(0)) parts.forEach((p) => p.shift());
  while (same(-1)) parts.forEach((p) => p.pop());
  return parts.map((p) => p.join("/"));
}

function view_compare(report) {
  const c = report.comparison, names = list(c && c.names);
  if (names.length < 2) {
    return [
      empty_view("One run", "This view compares two or more runs: levin report BEFORE AFTER --html report.html", null),
    ];
  }
  const totals = c.total || {}, out = [], short = short_names(names);
  out.push(
    el(
      "div",
      { class: "tiles" },
      names.map((name, i) =>
        tile(
          short[i],
          ...split_unit(format.time(list(totals.average_us)[i])),
          i === 0
            ? "the first run"
            : `${format.times(list(totals.speedup)[i])} ${list(totals.speedup)[i] >= 1 ? "as fast" : "(slower)"}`,
        )
      ),
    ),
  );
  for (const line of list(c.warnings)) out.push(el("p", { class: "note" }, line));
  const rows = list(c.overview);
  const tone = (i) => (row) => {
    const v = row.values[i] - row.values[0];
    return v > 0 ? "up" : v < 0 ? "down" : null;
  };
  const columns = [
    { key: "name", label: "Category" },
    ...names.flatMap((name, i) => [
      {
        key: "t" + i,
        label: short[i],
        kind: "time",
        value: (r) => r.values[i],
      },
      ...(i
        ? [{
          key: "d" + i,
          label: "Difference",
          kind: "signed",
          value: (r) => r.values[i] - r.values[0],
          tone: tone(i),
        }]
        : []),
    ]),
  ];
  out.push(
    el(
      "div",
      { class: "columns" },
      sized(
        card(
          "Step time",
          "average",
          stacked_bars({
            label: "Step time of the runs",
            names: kCategories,
            colors: [0, 1, 2, 3, 4, 5, 6, 7],
            write: format.time,
            groups: names.map((n, i) => ({
              name: short[i],
              title: n,
              values: kCategories.map((k) => {
                const r = rows.find((o) => o.name === k);
                return r ? r.average_us[i] : 0;
              }),
            })),
          }),
          legend(
            kCategories.map((n, i) => [n, i]).filter(([n]) =>
              rows.some((r) => r.name === n && r.average_us.some((v) => v > 0))
            ),
          ),
        ),
        "w5",
      ),
      sized(
        card(
          "By category",
          "of an average step",
          data_table({
            caption: "Categories of the runs",
            plain: true,
            columns,
            rows: rows.map((r) => ({ name: r.name, values: r.average_us })),
            total: { name: "Total", values: list(totals.average_us) },
          }),
        ),
        "w7",
      ),
    ),
  );
  const differences = (title, all, parts) => {
    if (!all.length) return;
    const last = names.length - 1;
    const columns_of = [
      { key: "name", label: "Name", kind: "name" },
      ...names.slice(1).map((name, k) => ({
        key: "x" + (k + 1),
        label: names.length > 2 ? `Difference, ${short[k + 1]}` : "Difference",
        kind: "signed",
        value: (r) => list(r.difference_us)[k + 1],
        tone: (r) => (list(r.difference_us)[k + 1] > 0 ? "up" : list(r.difference_us)[k + 1] < 0 ? "down" : null),
      })),
      ...parts.flatMap(([key, label]) =>
        names.map((_, i) => ({
          key: key + i,
          label: `${label}, ${short[i]}`,
          kind: "time",
          value: (r) => list(r[key])[i],
        }))
      ),
      ...names.map((_, i) => ({
        key: "c" + i,
        label: `Calls, ${short[i]}`,
        kind: "count",
        value: (r) => list(r.calls)[i],
      })),
    ];
    out.push(
      sized(
        card(
          title,
          "of one step; differences are to the first run",
          data_table({
            caption: title,
            rows: all.slice().sort((a, b) =>
              Math.abs(list(b.difference_us)[last] || 0) - Math.abs(list(a.difference_us)[last] || 0)
            ),
            columns: columns_of,
            file: title.toLowerCase(),
          }),
        ),
        "long",
      ),
    );
  };
  differences("Operators", list(c.operators), [["device_self_us", "Device self"], ["host_self_us", "Host self"]]);
  differences("Kernels", list(c.kernels), [["total_us", "Time"]]);
  const units = list(c.units);
  if (units.length) out.push(sized(card("Units", "of one step, with the units inside", unit_tree(units, short)), "long"));
  const times = (title, note, all) => {
    if (all.length < 2) return;
    out.push(
      sized(
        card(
          title,
          note,
          data_table({
            caption: title,
            rows: all,
            file: title.toLowerCase(),
            columns: [
              { key: "name", label: title === "Ranks" ? "Rank" : "Step", kind: "name" },
              ...short.map((name, i) => ({ key: "t" + i, label: name, kind: "time", value: (r) => list(r.total_us)[i] })),
              ...short.slice(1).map((name, k) => ({
                key: "d" + k,
                label: short.length > 2 ? `Difference, ${name}` : "Difference",
                kind: "signed",
                value: (r) => difference_of(list(r.total_us), k + 1),
                tone: (r) => tone_of(difference_of(list(r.total_us), k + 1)),
              })),
            ],
          }),
        ),
        "long",
      ),
    );
  };
  times("Steps", "by number, the mean of all ranks", list(c.steps));
  times("Ranks", "the mean of their steps", list(c.ranks));
  return out;
}

const difference_of = (values, i) => (isNumber(values[i]) && isNumber(values[0]) ? values[i] - values[0] : null);
const tone_of = (v) => (v > 0 ? "up" : v < 0 ? "down" : null);

/** Units of the runs under the units that call them; the units inside are drawn when one is opened. */
function unit_tree(units, short) {
  const inside = new Map();
  units.forEach((u, i) => inside.set(u.parent, [...(inside.get(u.parent) || []), i]));
  const last = short.length - 1, time = (u, i) => (list(u.device_total_us).some((v) => v > 0) ? u.device_total_us : u.host_total_us)[i];
  const change = (u) => Math.abs(list(u.difference_us)[last] || 0);
  const cells = (u) => [
    el("span", { class: "unit-name", title: u.name }, u.name),
    ...short.map((name, i) => el("span", { class: "num", title: name }, format.time(time(u, i)))),
    el("span", { class: "num " + (tone_of(list(u.difference_us)[last]) || "") }, format.signed(list(u.difference_us)[last])),
  ];
  const children = (parent) =>
    (inside.get(parent) || []).slice().sort((a, b) => change(units[b]) - change(units[a])).map((i) => {
      if (!inside.has(i)) return el("div", { class: "unit-row leaf" }, cells(units[i]));
      const node = el("details", null, el("summary", { class: "unit-row" }, cells(units[i])));
      node.addEventListener("toggle", () => {
        if (node.open && node.children.length === 1) node.append(...children(i));
      });
      return node;
    });
  const head = el(
    "div",
    { class: "unit-row head" },
    el("span", null, "Unit"),
    short.map((name) => el("span", { class: "num" }, name)),
    el("span", { class: "num" }, "Difference"),
  );
  const tree = el("div", { class: "unit-tree", style: { "--runs": String(short.length) } }, head, ...children(-1));
  const only = [...tree.children].filter((child) => child.tagName === "DETAILS");
  if (only.length === 1) only[0].open = true;
  return tree;
}

function view_run(report) {
  const runs = list(report.runs);
  if (!runs.length) {
    return [
      empty_view(
        "No run",
        "Curves, configuration and checkpoints are read from the folder of a run: levin report RUN_FOLDER",
        null,
      ),
    ];
  }
  const out = [], names = [...new Set(runs.flatMap((r) => list(r.curves).map((c) => c.name)))];
  if (names.length) {
    const place = el("div", { class: "columns" });
    const fill = () =>
      place.replaceChildren(...names.map((name) => {
        const series = runs.map((r, i) => ({
          name: runs.length > 1 ? r.name : name,
          color: [0, 5, 6, 3, 1, 8, 4, 9, 2][i % 9],
          curve: list(r.curves).find((c) => c.name === name),
        })).filter((s) => s.curve).map((s) => ({
          ...s,
          points: list(s.curve.steps).map((x, k) => [x, s.curve.values[k]]),
        }));
        const last = series.map((s) => s.points[s.points.length - 1]).filter(Boolean);
        return sized(
          card(
            name,
            last.length === 1 ? `last ${format.number(last[0][1])}` : null,
            line_chart({
              label: name,
              series,
              zero: false,
              log: page.log && series.every((s) => s.points.every((p) => p[1] > 0)),
              write_x: (v) => format.count(v),
              write_y: (v) => (v === 0 ? "0" : format.number(v)),
              height: 210,
            }),
            series.length > 1 ? legend(series.map((s) => [s.name, s.color])) : null,
          ),
          names.length > 2 ? "w4" : names.length > 1 ? "w6" : null,
        );
      }));
    fill();
    out.push(
      choice("Scale", ["Linear", "Logarithmic"], page.log ? 1 : 0, (i) => {
        page.log = i === 1;
        fill();
      }),
      place,
    );
  }
  for (const run of runs) {
    const head = runs.length > 1 ? ` of ${run.name}` : "";
    const two = (
      title,
      rows,
    ) => (rows.length
      ? sized(
        card(
          title + head,
          null,
          data_table({
            caption: title + head,
            plain: rows.length < 15,
            rows,
            filter: ["key", "value"],
            file: title.toLowerCase(),
            columns: [{ key: "key", label: "Name", kind: "name" }, { key: "value", label: "Value", kind: "text" }],
          }),
        ),
        "w6",
      )
      : null);
    const cards = [two("Configuration", list(run.configuration)), two("Environment", list(run.environment))].filter(
      Boolean,
    );
    if (cards.length === 1) cards[0].classList.remove("w6");
    if (cards.length) out.push(el("div", { class: "columns" }, cards));
    if (list(run.checkpoints).length) {
      out.push(card(
        "Checkpoints" + head,
        run.path,
        data_table({
          caption: "Checkpoints" + head,
          plain: run.checkpoints.length < 20,
          rows: run.checkpoints,
          filter: ["path"],
          file: "checkpoints",
          columns: [["path", "File", "name"], ["bytes", "Size", "bytes"], ["step", "Step", "count"], [
            "time",
            "Written",
            "text",
          ]].map(([key, label, kind]) => ({ key, label, kind })),
        }),
      ));
    }
  }
  return out;
}
