// Charts are SVG, drawn anew when their width changes: letters keep their size on a phone.

/** A figure whose content `draw(width)` makes. */
function chart(label, draw) {
  const figure = el("figure", { role: "img", "aria-label": label });
  let width = 0;
  const redraw = (force) => {
    const now = Math.round(figure.clientWidth);
    if (now < 10 || (!force && now === width)) return;
    width = now;
    figure.replaceChildren(draw(width));
  };
  new ResizeObserver(() => redraw(false)).observe(figure);
  addEventListener("beforeprint", () => {
    if (!width) {
      width = 680;
      figure.replaceChildren(draw(width));
    }
  });
  figure.redraw = () => redraw(true);
  return figure;
}

/** Up to n + 1 round numbers from 0 or `low` to at least `high`. */
function ticks(low, high, n, base = 10) {
  if (!(high > low)) high = low + 1;
  const raw = (high - low) / n, power = base ** Math.floor(Math.log(raw) / Math.log(base));
  const step = (base === 1024 ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] : [1, 2, 2.5, 5, 10]).map((m) =>
    m * power
  ).find((s) => s >= raw * 0.999);
  const out = [];
  for (let i = Math.floor(low / step + 1e-9);; ++i) {
    out.push(i * step);
    if (i * step >= high - step * 1e-9) break;
  }
  return out;
}

const svg_of = (width, height, ...children) =>
  el("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, ...children);
const svg_text = (x, y, anchor, text, name) => el("text", { x, y, "text-anchor": anchor, class: name }, text);

/** Horizontal lines with their labels; returns the function from value to y. */
function y_axis(parts, marks, box, write) {
  const top = marks[marks.length - 1], low = marks[0];
  const y = (v) => box.bottom - (v - low) / (top - low || 1) * (box.bottom - box.top);
  for (const mark of marks) {
    parts.push(
      el("line", { class: mark === low ? "axis" : "grid", x1: box.left, x2: box.right, y1: y(mark), y2: y(mark) }),
      svg_text(box.left - 8, y(mark) + 4, "end", label_of(write)(mark)),
    );
  }
  return y;
}

/** Bars of parts: groups [{name, values}], the colours of the parts, and a last wider bar for the average where it is given. */
function stacked_bars(options) {
  const { groups, names, colors, write } = options;
  return chart(options.label, (width) => {
    const height = options.height || 260,
      left = 62,
      bottom = height - 26,
      box = { left, right: width, top: 10, bottom };
    const total = (g) => g.values.reduce((a, b) => a + (b || 0), 0);
    const parts = [], y = y_axis(parts, ticks(0, groups.reduce((m, g) => Math.max(m, total(g)), 0), 4), box, write);
    const slot = (width - left) / groups.length,
      bar = Math.max(1, Math.min(46, slot * 0.72)),
      every = Math.ceil(54 / slot);
    groups.forEach((group, i) => {
      const x = left + slot * (i + 0.5) - bar / 2;
      let base = 0;
      const column = el("g", { class: "mark" });
      group.values.forEach((value, k) => {
        if (!(value > 0)) return;
        const height_of = y(base) - y(base + value);
        column.append(
          el("rect", {
            class: "f" + colors[k],
            x,
            y: y(base + value),
            width: bar,
            height: Math.max(0, height_of - (height_of > 3 ? 0.6 : 0)),
          }),
        );
        base += value;
      });
      hover(
        column,
        group.title || group.name,
        () => [
          ["Total", write(total(group))],
          ...names.map((n, k) => [n, group.values[k]]).filter((p) => p[1] > 0)
            .map((p) => [p[0], write(p[1]) + "  " + format.percent(100 * p[1] / (total(group) || 1))]),
        ],
      );
      parts.push(column);
      if (i % every === 0 || (group.strong && slot > 40)) {
        parts.push(svg_text(x + bar / 2, bottom + 17, "middle", group.name, group.strong ? "strong" : null));
      }
    });
    return svg_of(width, height, ...parts);
  });
}

/** The largest value of each stretch is kept, and the first and last: a peak is never lost. */
function thinned(points, limit) {
  if (points.length <= limit) return points;
  const out = [points[0]], step = (points.length - 2) / (limit - 2);
  for (let i = 0; i < limit - 2; ++i) {
    let best = null;
    for (let k = 1 + Math.floor(i * step); k < 1 + Math.floor((i + 1) * step); ++k) {
      if (!best || points[k][1] > best[1]) best = points[k];
    }
    if (best) out.push(best);
  }
  out.push(points[points.length - 1]);
  return out;
}

/**
 * Curves: series [{name, points [[x, y]], color, dashed, steps}], write_x, write_y, levels [{value, name, color}] as dashed lines,
 * marks [{x, y, name}], log (y), area (fill under the first).
 */
function line_chart(options) {
  const series = options.series.map((s) => ({
    ...s,
    points: thinned(s.points.filter((p) => isNumber(p[0]) && isNumber(p[1]) && (!options.log || p[1] > 0)), 1200),
  }));
  const used = series.filter((s) => s.points.length);
  if (!used.length) return el("p", { class: "keys" }, "No points.");
  return chart(options.label, (width) => {
    const height = options.height || 250, left = 70, box = { left, right: width - 10, top: 12, bottom: height - 28 };
    const reach = (axis, f, start) => used.reduce((m, s) => s.points.reduce((n, p) => f(n, p[axis]), m), start);
    const x0 = reach(0, Math.min, Infinity),
      x1 = reach(0, Math.max, -Infinity),
      level_values = list(options.levels).map((l) => l.value);
    const low = Math.min(reach(1, Math.min, Infinity), ...level_values),
      high = Math.max(reach(1, Math.max, -Infinity), ...level_values);
    const parts = [], x = (v) => box.left + (x1 > x0 ? (v - x0) / (x1 - x0) : 0.5) * (box.right - box.left);
    let y;
    if (options.log) {
      const a = Math.floor(Math.log10(low)), b = Math.max(a + 1, Math.ceil(Math.log10(high)));
      const marks = [];
      for (let i = a; i <= b; ++i) marks.push(i);
      const at = y_axis(parts, marks, box, (v) => options.write_y(10 ** v));
      y = (v) => at(Math.log10(v));
    } else {
      y = y_axis(
        parts,
        ticks(options.zero === false ? low : Math.min(0, low), high, 4, options.base || 10),
        box,
        options.write_y,
      );
    }
    for (const mark of ticks(x0, x1, Math.max(2, Math.floor(width / 130)))) {
      if (mark < x0 - 1e-9 || mark > x1 + 1e-9) continue;
      parts.push(svg_text(x(mark), height - 9, "middle", label_of(options.write_x)(mark)));
    }
    used.forEach((s, i) => {
      let path = "", before = null;
      for (const p of s.points) {
        path += (path
          ? (s.steps ? `H${x(p[0]).toFixed(1)}V` : "L" + x(p[0]).toFixed(1) + ",")
          : "M" + x(p[0]).toFixed(1) + ",") + y(p[1]).toFixed(1);
        before = p;
      }
      if (options.area && i === 0 && before) {
        parts.push(
          el("path", {
            class: "f" + s.color,
            "fill-opacity": 0.13,
            d: path + `V${box.bottom}H${x(s.points[0][0]).toFixed(1)}Z`,
          }),
        );
      }
      parts.push(
        el("path", {
          class: "s" + s.color,
          d: path,
          fill: "none",
          "stroke-width": 1.8,
          "stroke-linejoin": "round",
          "stroke-dasharray": s.dashed ? "5 4" : null,
        }),
      );
      if (s.points.length <= 40 && !s.steps) {
        for (const p of s.points) {
          parts.push(el("circle", { class: "f" + s.color, cx: x(p[0]), cy: y(p[1]), r: 2.4 }));
        }
      }
    });
    for (const level of list(options.levels)) {
      parts.push(
        el("line", {
          class: "s" + level.color,
          x1: box.left,
          x2: box.right,
          y1: y(level.value),
          y2: y(level.value),
          "stroke-width": 1.3,
          "stroke-dasharray": "6 4",
        }),
        svg_text(box.right, y(level.value) - 5, "end", level.name, "strong"),
      );
    }
    const cursor = el("line", { class: "axis", y1: box.top, y2: box.bottom, visibility: "hidden" });
    const pane = el("rect", {
      x: box.left,
      y: box.top,
      width: Math.max(0, box.right - box.left),
      height: box.bottom - box.top,
      fill: "transparent",
    });
    const graph = svg_of(width, height, ...parts, cursor, pane);
    pane.addEventListener("pointermove", (event) => {
      const edge = graph.getBoundingClientRect(),
        at = x0 + ((event.clientX - edge.left) * width / edge.width - box.left) / (box.right - box.left) * (x1 - x0);
      const values = used.map((s) => [s.name, nearest(s.points, at, s.steps)]);
      const px = x(values[0][1][0]);
      cursor.setAttribute("x1", px);
      cursor.setAttribute("x2", px);
      cursor.setAttribute("visibility", "visible");
      tip.show(
        event.clientX,
        event.clientY,
        options.write_x(values[0][1][0]),
        values.map(([name, p]) => [name, options.write_y(p[1])]),
      );
    });
    pane.addEventListener("pointerleave", () => {
      cursor.setAttribute("visibility", "hidden");
      tip.hide();
    });
    return graph;
  });
}

/** The point at x: the last before it for steps, else the nearest. */
function nearest(points, x, before) {
  let a = 0, b = points.length - 1;
  while (a < b) {
    const m = (a + b + 1) >> 1;
    if (points[m][0] <= x) a = m;
    else b = m - 1;
  }
  return !before && a + 1 < points.length && points[a + 1][0] - x < x - points[a][0] ? points[a + 1] : points[a];
}

/** Names with a bar behind them, the rest in one line. */
function bar_list(rows, write, limit = 10) {
  const sum = rows.reduce((a, r) => a + r.value, 0),
    top = rows.slice().sort((a, b) => b.value - a.value).filter((r) => r.value > 0);
  const shown = top.slice(0, limit), rest = top.slice(limit).reduce((a, r) => a + r.value, 0);
  if (rest > 0) shown.push({ name: `${top.length - limit} others`, value: rest, color: 7 });
  if (!shown.length) return el("p", { class: "keys" }, "Nothing was measured.");
  const most = shown.reduce((m, r) => Math.max(m, r.value), 0);
  return el(
    "div",
    { class: "barlist" },
    shown.map((r) => [
      el(
        "div",
        { class: "name", title: r.name },
        el("i", { class: "b" + (r.color ?? 0), style: { width: 100 * r.value / most + "%" } }),
        el("span", { class: r.plain ? null : "mono" }, r.name),
      ),
      el("div", { class: "num" }, write ? write(r.value) : format.percent(100 * r.value / sum)),
    ]),
  );
}

/** One bar of parts [{name, value, color}]. */
function share_bar(parts, write, label) {
  const sum = parts.reduce((a, p) => a + Math.max(0, p.value), 0) || 1;
  const bar = el("div", {
    class: "stack",
    role: "img",
    "aria-label": label + ": " + parts.filter((p) => p.value > 0).map((p) => `${p.name} ${write(p.value)}`).join(", "),
  });
  for (const part of parts) {
    if (!(part.value > 0)) continue;
    bar.append(
      hover(
        el("div", { class: "b" + part.color, style: { flex: part.value / sum + " 0 0" } }),
        part.name,
        () => [write(part.value) + "  " + format.percent(100 * part.value / sum)],
      ),
    );
  }
  return bar;
}

/** Kernels by FLOPs per byte (x) and TFLOP/s (y), both logarithmic, under the roof of the device. */
function roofline_chart(roof, points) {
  return chart("Roofline", (width) => {
    const height = Math.min(420, Math.max(280, width * 0.5)),
      box = { left: 62, right: width - 12, top: 16, bottom: height - 40 };
    const real = points.filter((p) => p.flops_per_byte > 0 && p.tflops > 0);
    const ridge = roof.ridge_flops_per_byte || roof.peak_tflops * 1e3 / roof.peak_gbps;
    const xs = [...real.map((p) => p.flops_per_byte), ridge / 30, ridge * 10],
      ys = [...real.map((p) => p.tflops), roof.peak_tflops * 1.5];
    const x0 = Math.floor(Math.log10(Math.min(...xs))), x1 = Math.ceil(Math.log10(Math.max(...xs)));
    const y0 = Math.max(Math.floor(Math.log10(Math.min(...ys))), Math.ceil(Math.log10(roof.peak_tflops)) - 7),
      y1 = Math.ceil(Math.log10(Math.max(...ys)));
    const x = (v) => box.left + (Math.log10(v) - x0) / (x1 - x0) * (box.right - box.left),
      y = (v) => box.bottom - (Math.log10(v) - y0) / (y1 - y0) * (box.bottom - box.top);
    const parts = [],
      power = (
        v,
      ) => (v >= 0.001 && v <= 10000 ? grouped(v, Math.max(0, -Math.round(Math.log10(v)))) : v.toExponential(0));
    for (let i = y0; i <= y1; ++i) {
      parts.push(
        el("line", { class: i === y0 ? "axis" : "grid", x1: box.left, x2: box.right, y1: y(10 ** i), y2: y(10 ** i) }),
        svg_text(box.left - 8, y(10 ** i) + 4, "end", power(10 ** i)),
      );
    }
    for (let i = x0; i <= x1; ++i) {
      parts.push(
        el("line", { class: "grid", x1: x(10 ** i), x2: x(10 ** i), y1: box.top, y2: box.bottom }),
        svg_text(x(10 ** i), box.bottom + 16, "middle", power(10 ** i)),
      );
    }
    parts.push(
      svg_text((box.left + box.right) / 2, height - 6, "middle", "FLOP per byte"),
      svg_text(box.left, 8, "end", "TFLOP/s"),
    );
    const start = Math.max(10 ** x0, 10 ** y0 * 1e3 / roof.peak_gbps);
    parts.push(
      el("path", {
        class: "s5",
        fill: "none",
        "stroke-width": 2,
        d: `M${x(start)},${y(start * roof.peak_gbps / 1e3)}L${x(ridge)},${y(roof.peak_tflops)}H${box.right}`,
      }),
      svg_text(
        box.right,
        y(roof.peak_tflops) - 6,
        "end",
        `${format.number(roof.peak_tflops)} TFLOP/s ${roof.precision || ""}`,
        "strong",
      ),
      svg_text(
        x(ridge) - 10,
        y(roof.peak_tflops) + 4,
        "end",
        `${format.count(Math.round(roof.peak_gbps))} GB/s`,
        "strong",
      ),
    );
    const most = real.reduce((m, p) => Math.max(m, p.total_us), 0);
    for (const p of real.slice().sort((a, b) => b.total_us - a.total_us)) {
      parts.push(
        hover(
          el("circle", {
            class: "mark " + (p.bound === "compute" ? "f0 s0" : "f1 s1"),
            "fill-opacity": 0.55,
            cx: x(p.flops_per_byte),
            cy: Math.min(box.bottom, y(p.tflops)),
            r: 4 + 13 * Math.sqrt(p.total_us / (most || 1)),
          }),
          p.name,
          () => [
            ["Time", format.time(p.total_us)],
            ["Achieved", format.number(p.tflops) + " TFLOP/s"],
            ["Roof", `${format.number(p.roof_tflops)} TFLOP/s (${format.percent(p.roof_percent)})`],
            ["FLOP per byte", format.number(p.flops_per_byte)],
            ["Bound by", p.bound],
          ],
        ),
      );
    }
    return svg_of(width, height, ...parts);
  });
}
