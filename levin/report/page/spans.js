// Spans on a canvas: the timeline of a trace and the flame graph of the modules. A row holds its spans in typed arrays in the order of
// time. Drawing walks from pixel to pixel and not from span to span, so a frame costs the same for a hundred spans and for a million.
const kLaneHead = 20, kRuler = 24;

/** The first place whose value is at least v. */
function lower_bound(values, v) {
  let a = 0, b = values.length;
  while (a < b) {
    const m = (a + b) >> 1;
    if (values[m] < v) a = m + 1;
    else b = m;
  }
  return a;
}

/** Rows of a lane from its spans [row, start, duration, name, kind, count]. */
function rows_of_lane(lane) {
  const rows = Array.from({ length: Math.max(1, lane.rows || 1) }, () => []);
  for (const span of list(lane.spans)) if (rows[span[0]]) rows[span[0]].push(span);
  return rows.map((spans) => {
    spans.sort((a, b) => a[1] - b[1]);
    const n = spans.length,
      row = {
        start: new Float64Array(n),
        end: new Float64Array(n),
        name: new Int32Array(n),
        kind: new Uint8Array(n),
        count: new Int32Array(n),
        spans,
      };
    let reach = -Infinity;
    spans.forEach((s, i) => {
      row.start[i] = s[1];
      row.end[i] = s[1] + s[2];
      row.name[i] = s[3];
      row.kind[i] = s[4];
      row.count[i] = s[5] || 1;
      reach = Math.max(reach, row.end[i]);
    });
    row.reach = reach;
    return row;
  });
}

class SpanView {
  /** options: lanes, names, kinds, height, color(name, kind), describe(hit) -> lines, select(hit), write (of times), wheel (zooms without ctrl), marks. */
  constructor(options) {
    this.o = options;
    this.lanes = options.lanes.map((lane) => ({
      name: lane.name,
      group: lane.group,
      rows: rows_of_lane(lane),
      open: true,
      plain: lane.plain,
    }));
    const all = this.lanes.flatMap((l) => l.rows).filter((r) => r.start.length);
    this.low = options.low ?? Math.min(...all.map((r) => r.start[0]), Infinity);
    this.high = options.high ?? Math.max(...all.map((r) => r.reach), -Infinity);
    if (!(this.high > this.low)) {
      this.low = 0;
      this.high = 1;
    }
    this.row = 17;
    this.from = this.low;
    this.to = this.high;
    this.top = 0;
    this.selected = null;
    this.found = null;
    this.range = null;
    this.pointers = new Map();
    this.canvas = el("canvas", {
      tabindex: 0,
      role: "application",
      class: options.wheel ? null : "page-scroll",
      "aria-label": options.label + ". Keys: W and S zoom, A and D move, 0 shows all.",
    });
    this.node = el("div", { class: "spans" }, this.canvas);
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.node);
    addEventListener("levin-theme", () => {
      this.palette = null;
      this.plan();
    });
  }

  content_height() {
    return kRuler +
      this.lanes.reduce(
        (sum, l) =>
          sum + (l.plain ? 0 : kLaneHead) + (l.open ? l.rows.length : Math.min(1, l.rows.length)) * this.row + 4,
        0,
      ) +
      4;
  }
  resize() {
    this.width = this.node.clientWidth;
    if (this.width < 10) return;
    // Few rows are drawn higher, which is easier to read and to touch.
    this.row = 17;
    const rows = this.lanes.reduce((sum, l) => sum + (l.open ? l.rows.length : 1), 0),
      spare = this.o.height() - this.content_height();
    this.row += Math.max(0, Math.min(6, Math.floor(spare / rows)));
    this.height = Math.max(60, Math.min(this.content_height(), this.o.height()));
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.canvas.style.height = this.height + "px";
    this.scale = scale;
    this.move_rows(0);
    this.plan();
  }
  plan() {
    if (this.planned) return;
    this.planned = true;
    requestAnimationFrame(() => {
      this.planned = false;
      if (this.width >= 10) this.draw();
    });
  }
  colors() {
    if (this.palette) return this.palette;
    const style = getComputedStyle(document.documentElement), read = (name) => style.getPropertyValue(name).trim();
    this.palette = {
      fill: Array.from({ length: 10 }, (_, i) => read("--c" + i)),
      text: read("--text"),
      soft: read("--soft"),
      faint: read("--faint"),
      line: read("--line"),
      shade: read("--shade"),
      card: read("--card"),
      dark: document.documentElement.dataset.theme === "dark",
      mark: read("--bad"),
    };
    return this.palette;
  }
  x(t) {
    return (t - this.from) / (this.to - this.from) * this.width;
  }
  t(x) {
    return this.from + x / this.width * (this.to - this.from);
  }

  draw() {
    const c = this.canvas.getContext("2d"), paint = this.colors();
    c.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    c.fillStyle = paint.card;
    c.fillRect(0, 0, this.width, this.height);
    let y = kRuler - this.top;
    for (const lane of this.lanes) {
      lane.y = y;
      if (!lane.plain) y += kLaneHead;
      lane.body = y;
      const rows = lane.open ? lane.rows : lane.rows.slice(0, 1);
      for (const row of rows) {
        if (y + this.row > kRuler && y < this.height) this.draw_row(c, row, y, paint);
        y += this.row;
      }
      y += 4;
      lane.bottom = y;
      if (!lane.plain && lane.y + kLaneHead > kRuler && lane.y < this.height) this.draw_lane_head(c, lane, paint);
    }
    this.draw_marks(c, paint);
    this.draw_ruler(c, paint);
  }
  draw_lane_head(c, lane, paint) {
    c.fillStyle = paint.shade;
    c.fillRect(0, lane.y, this.width, kLaneHead - 2);
    c.font = "600 11px system-ui, sans-serif";
    c.fillStyle = paint.soft;
    c.textBaseline = "middle";
    c.fillText(
      `${lane.open ? "\u25be" : "\u25b8"}  ${lane.group ? lane.group + " \u00b7 " : ""}${lane.name}`,
      8,
      lane.y + kLaneHead / 2 - 1,
    );
  }
  draw_row(c, row, y, paint) {
    const { start, end, name, kind } = row,
      n = start.length,
      per = this.width / (this.to - this.from),
      h = this.row - 2;
    let i = Math.max(0, lower_bound(start, this.from) - 1), fill = -1, dim = null;
    c.font = "11px ui-monospace, Menlo, Consolas, monospace";
    c.textBaseline = "middle";
    while (i < n && start[i] < this.to) {
      if (end[i] < this.from) {
        ++i;
        continue;
      }
      const left = Math.max(-1, (start[i] - this.from) * per),
        right = Math.min(this.width + 1, (end[i] - this.from) * per),
        wide = Math.max(1, right - left - (right - left > 3 ? 0.7 : 0));
      const color = this.o.color(name[i], kind[i]), faded = this.found !== null && !this.found.has(name[i]);
      if (dim !== faded) {
        c.globalAlpha = faded ? 0.18 : 1;
        dim = faded;
      }
      if (fill !== color) {
        c.fillStyle = paint.fill[color];
        fill = color;
      }
      c.fillRect(left, y, wide, h);
      if (wide > 34) {
        const text = this.o.names[name[i]] ?? "",
          inset = Math.max(left, 0) + 4,
          room = right - inset - 4,
          letters = Math.floor(room / 6.65);
        if (letters >= 3) {
          c.fillStyle = paint.dark || color === 7 || color === 4 || color === 2 ? "#111114" : "#ffffff";
          c.fillText(text.length > letters ? text.slice(0, letters - 1) + "\u2026" : text, inset, y + h / 2 + 0.5);
          fill = -1;
        }
      }
      // Spans that end inside this pixel are under what was drawn. Spans of a row do not overlap: only the last that starts
      // in the pixel can go on beyond it.
      if (wide > 1) {
        ++i;
      } else {
        const edge = this.from + (left + 1) / per, last = lower_bound(start, edge) - 1;
        i = last > i && end[last] > edge ? last : Math.max(i, last) + 1;
      }
    }
    c.globalAlpha = 1;
    const s = this.selected;
    if (s && s.row === row) {
      c.strokeStyle = paint.text;
      c.lineWidth = 2;
      c.strokeRect(this.x(row.start[s.i]), y, Math.max(2, this.x(row.end[s.i]) - this.x(row.start[s.i])), h);
    }
  }
  draw_marks(c, paint) {
    c.fillStyle = paint.faint;
    c.globalAlpha = 0.45;
    for (const mark of list(this.o.marks)) {
      const x = Math.round(this.x(mark));
      if (x >= 0 && x <= this.width) c.fillRect(x, kRuler, 1, this.height);
    }
    c.globalAlpha = 1;
    if (!this.range) return;
    const a = this.x(Math.min(...this.range)), b = this.x(Math.max(...this.range));
    c.globalAlpha = 0.16;
    c.fillStyle = paint.fill[0];
    c.fillRect(a, kRuler, b - a, this.height);
    c.globalAlpha = 1;
    const text = this.o.write(Math.abs(this.range[1] - this.range[0]));
    c.font = "600 12px system-ui, sans-serif";
    c.textBaseline = "top";
    const wide = c.measureText(text).width, at = Math.max(4, Math.min(this.width - wide - 12, (a + b - wide) / 2));
    c.fillStyle = paint.card;
    c.fillRect(at - 6, kRuler + 6, wide + 12, 20);
    c.fillStyle = paint.text;
    c.fillText(text, at, kRuler + 10);
  }
  draw_ruler(c, paint) {
    c.fillStyle = paint.card;
    c.fillRect(0, 0, this.width, kRuler - 1);
    c.fillStyle = paint.line;
    c.fillRect(0, kRuler - 1, this.width, 1);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    for (const mark of ticks(this.from, this.to, Math.max(2, Math.floor(this.width / 120)))) {
      const x = this.x(mark);
      if (x < -60 || x > this.width) continue;
      c.fillStyle = paint.line;
      c.fillRect(Math.round(x), 0, 1, kRuler);
      c.fillStyle = paint.faint;
      c.fillText(label_of(this.o.write)(mark), x + 5, kRuler / 2);
    }
    const content = this.content_height();
    if (content <= this.height) return;
    const track = this.height - kRuler;
    c.fillStyle = paint.faint;
    c.globalAlpha = 0.5;
    c.fillRect(this.width - 5, kRuler + this.top / content * track, 4, Math.max(20, track * this.height / content));
    c.globalAlpha = 1;
  }

  /** What lies under a point of the canvas. */
  hit(x, y) {
    if (y < kRuler) return null;
    for (const lane of this.lanes) {
      if (y < lane.y || y >= lane.bottom) continue;
      if (y < lane.body) return { lane };
      const row = lane.rows[Math.floor((y - lane.body) / this.row)];
      if (!row || (!lane.open && y - lane.body >= this.row)) return null;
      const slack = (this.to - this.from) / this.width * 2, t = this.t(x);
      let best = null;
      for (
        let i = Math.max(0, lower_bound(row.start, t - slack) - 1);
        i < row.start.length && row.start[i] <= t + slack;
        ++i
      ) {
        const away = Math.max(row.start[i] - t, t - row.end[i], 0);
        if (away <= slack && (!best || away < best.away)) best = { lane, row, i, away };
      }
      return best;
    }
    return null;
  }
  describe(hit) {
    const { row, i } = hit, count = row.count[i];
    return {
      name: this.o.names[row.name[i]] ?? "",
      kind: this.o.kinds[row.kind[i]] ?? "",
      start: row.start[i],
      duration: row.end[i] - row.start[i],
      count,
      lane: hit.lane,
      span: row.spans[i],
    };
  }

  zoom(factor, x) {
    const t = this.t(x),
      least = (this.high - this.low) * 1e-7,
      span = Math.min(this.high - this.low, Math.max(least, (this.to - this.from) * factor));
    const share = x / this.width;
    this.show(t - span * share, t + span * (1 - share));
  }
  show(from, to) {
    const span = Math.min(to - from, this.high - this.low);
    this.from = Math.max(this.low, Math.min(from, this.high - span));
    this.to = this.from + span;
    this.plan();
    if (this.o.moved) this.o.moved(this.from, this.to);
  }
  pan(dx) {
    const dt = dx / this.width * (this.to - this.from);
    this.show(this.from + dt, this.to + dt);
  }
  move_rows(dy) {
    this.top = Math.max(0, Math.min(this.top + dy, this.content_height() - this.height));
    this.plan();
  }
  select(hit) {
    this.selected = hit;
    if (this.o.select) this.o.select(hit);
    this.plan();
  }
  /** Spans whose name has the words; all others are faded. Returns their number. */
  search(words) {
    const w = words.trim().toLowerCase();
    this.matches = [];
    this.found = null;
    if (w) {
      this.found = new Set();
      this.o.names.forEach((name, i) => {
        if (name.toLowerCase().includes(w)) this.found.add(i);
      });
      for (const lane of this.lanes) {
        for (const row of lane.rows) {
          for (let i = 0; i < row.name.length; ++i) {
            if (this.found.has(row.name[i])) this.matches.push({ lane, row, i });
          }
        }
      }
      this.matches.sort((a, b) => a.row.start[a.i] - b.row.start[b.i]);
    }
    this.at = -1;
    this.plan();
    return this.matches.length;
  }
  next(step) {
    if (!this.matches || !this.matches.length) return;
    this.at = (this.at + step + this.matches.length) % this.matches.length;
    const hit = this.matches[this.at], { start, end } = hit.row, length = end[hit.i] - start[hit.i];
    const span = Math.min(this.to - this.from, Math.max(length * 6, (this.high - this.low) * 1e-6)),
      middle = (start[hit.i] + end[hit.i]) / 2;
    hit.lane.open = true;
    this.show(middle - span / 2, middle + span / 2);
    const y = hit.lane.body + this.top - kRuler + hit.lane.rows.indexOf(hit.row) * this.row;
    if (y < this.top || y > this.top + this.height - kRuler - 40) this.move_rows(y - this.height / 3 - this.top);
    this.select(hit);
  }

  listen() {
    const c = this.canvas,
      at = (event) => {
        const box = c.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
    c.addEventListener("wheel", (event) => {
      const zooms = event.ctrlKey || event.metaKey ||
        (this.o.wheel && document.activeElement === c && !event.shiftKey &&
          Math.abs(event.deltaX) <= Math.abs(event.deltaY));
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (zooms) {
        this.zoom(
          Math.exp(Math.max(-60, Math.min(60, event.deltaY * (event.deltaMode ? 16 : 1))) * 0.006),
          at(event)[0],
        );
      } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) this.pan(sideways);
      else return;
      event.preventDefault();
      tip.hide();
    }, { passive: false });
    c.addEventListener("pointerdown", (event) => {
      c.setPointerCapture(event.pointerId);
      c.focus({ preventScroll: true });
      const [x, y] = at(event);
      this.pointers.set(event.pointerId, { x, y, x0: x, y0: y });
      this.range = event.shiftKey ? [this.t(x), this.t(x)] : null;
      this.moved = false;
      this.plan();
    });
    c.addEventListener("pointermove", (event) => {
      const [x, y] = at(event), p = this.pointers.get(event.pointerId);
      if (!p) return this.point(x, y, event);
      const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, v]) => v);
      if (others.length) {
        const before = Math.abs(p.x - others[0].x) || 1, now = Math.abs(x - others[0].x) || 1;
        this.zoom(before / now, (x + others[0].x) / 2);
        this.moved = true;
      } else if (this.range) {
        this.range[1] = this.t(x);
        this.plan();
      } else {
        if (Math.abs(x - p.x0) + Math.abs(y - p.y0) > 4) this.moved = true;
        if (this.moved) {
          this.pan(p.x - x);
          if (this.o.wheel) this.move_rows(p.y - y);
          c.classList.add("dragging");
        }
      }
      p.x = x;
      p.y = y;
      tip.hide();
    });
    const up = (event) => {
      const p = this.pointers.get(event.pointerId);
      this.pointers.delete(event.pointerId);
      c.classList.remove("dragging");
      if (!p || this.moved || this.range || event.type === "pointercancel") return;
      const hit = this.hit(p.x, p.y);
      if (hit && !hit.row) {
        hit.lane.open = !hit.lane.open;
        this.resize();
      } else this.select(hit);
    };
    c.addEventListener("pointerup", up);
    c.addEventListener("pointercancel", up);
    c.addEventListener("pointerleave", tip.hide);
    c.addEventListener("dblclick", (event) => {
      const hit = this.hit(...at(event));
      if (hit && hit.row) this.show_hit(hit);
    });
    c.addEventListener("keydown", (event) => this.key(event));
  }
  show_hit(hit) {
    const { start, end } = hit.row, room = (end[hit.i] - start[hit.i]) * 0.05;
    this.show(start[hit.i] - room, end[hit.i] + room);
  }
  point(x, y, event) {
    const hit = this.hit(x, y);
    this.canvas.style.cursor = hit ? "pointer" : "";
    if (!hit || !hit.row || event.pointerType === "touch") return tip.hide();
    const d = this.describe(hit);
    tip.show(event.clientX, event.clientY, this.o.title ? this.o.title(d) : d.name, this.o.describe(d));
  }
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const middle = this.width / 2, step = this.width / 8;
    const actions = {
      w: () => this.zoom(0.7, middle),
      "+": () => this.zoom(0.7, middle),
      "=": () => this.zoom(0.7, middle),
      s: () => this.zoom(1.43, middle),
      "-": () => this.zoom(1.43, middle),
      a: () => this.pan(-step),
      arrowleft: () => this.pan(-step),
      d: () => this.pan(step),
      arrowright: () => this.pan(step),
      arrowup: () => this.move_rows(-40),
      arrowdown: () => this.move_rows(40),
      0: () => this.show(this.low, this.high),
      f: () => this.selected && this.show_hit(this.selected),
      n: () => this.next(1),
      p: () => this.next(-1),
      escape: () => {
        this.range = null;
        this.select(null);
      },
    };
    const action = actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  }
}
