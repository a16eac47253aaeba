// The page: tabs, the address after #, theme, the chosen trace. A view is drawn when it is opened the first time.
const kViews = [
  ["overview", "Overview", view_overview],
  ["operators", "Operators", view_operators],
  ["kernels", "Kernels", view_kernels],
  ["trace", "Trace", view_trace],
  ["memory", "Memory", view_memory],
  ["modules", "Modules", view_modules],
  ["distributed", "Distributed", view_distributed],
  ["compare", "Compare", view_compare],
  ["roofline", "Roofline", view_roofline],
  ["idle", "Idle", view_idle],
  ["run", "Run", view_run],
];

const page = { report: null, trace: 0, view: "overview", panels: new Map(), drawn: new Set() };

/** "#trace?t=10-20&find=gemm" as {view, t, find}. */
function hash_options() {
  const [view, rest] = location.hash.slice(1).split("?"), out = { view };
  for (const [key, value] of new URLSearchParams(rest || "")) out[key] = value;
  return out;
}
let remembering = 0;
/** Keeps a state in the address without a step of the history; at most four times a second. */
function remember(key, value) {
  page.kept = { ...page.kept, [key]: value };
  clearTimeout(remembering);
  remembering = setTimeout(() => {
    const query = new URLSearchParams();
    if (page.trace) query.set("trace", page.trace);
    if (page.view === "trace") { for (const [k, v] of Object.entries(page.kept || {})) if (v) query.set(k, v); }
    const text = query.toString();
    try {
      history.replaceState(null, "", "#" + page.view + (text ? "?" + text : ""));
    } catch { /* a sandboxed page has no history */ }
  }, 250);
}

const current_trace = () => list(page.report.traces)[page.trace] || null;

function draw_view(id) {
  if (page.drawn.has(id)) return;
  page.drawn.add(id);
  const [, title, make] = kViews.find((v) => v[0] === id), panel = page.panels.get(id);
  let nodes;
  try {
    nodes = make(page.report, current_trace());
  } catch (error) {
    console.error(error);
    nodes = [empty_view(title + " cannot be drawn", String(error && error.message), null)];
  }
  panel.replaceChildren(...nodes);
  panel.classList.toggle("empty", nodes.length > 0 && nodes.every((n) => n.classList.contains("empty-view")));
}

function open_view(id, focus) {
  if (!page.panels.has(id)) id = "overview";
  page.view = id;
  tip.hide();
  for (const [name, panel] of page.panels) {
    const tab = document.getElementById("tab-" + name), on = name === id;
    panel.hidden = !on;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    if (on) {
      tab.scrollIntoView({ block: "nearest", inline: "nearest" });
      if (focus) tab.focus();
    }
  }
  draw_view(id);
}

function go(id, focus) {
  if (id !== page.view) {
    try {
      history.pushState(null, "", "#" + id);
    } catch { /* as above */ }
    scrollTo(0, 0);
  }
  open_view(id, focus);
}

function make_tabs() {
  const tabs = document.getElementById("tabs"), main = document.getElementById("main");
  main.replaceChildren();
  for (const [id, title] of kViews) {
    tabs.append(
      el("button", {
        role: "tab",
        id: "tab-" + id,
        type: "button",
        "aria-controls": "view-" + id,
        "aria-selected": "false",
        tabindex: -1,
        on: { click: () => go(id, false) },
      }, title),
    );
    const panel = el("div", {
      role: "tabpanel",
      id: "view-" + id,
      "aria-labelledby": "tab-" + id,
      "data-title": title,
      tabindex: -1,
      hidden: true,
    });
    page.panels.set(id, panel);
    main.append(panel);
  }
  tabs.addEventListener("keydown", (event) => {
    const at = kViews.findIndex((v) => v[0] === page.view),
      to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: kViews.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(kViews[(to + kViews.length) % kViews.length][0], true);
  });
}

/** Which views have something to show; the others are fainter. */
function mark_tabs() {
  const t = current_trace(),
    r = page.report,
    has = {
      overview: t || list(r.runs).length,
      operators: t && list(t.operators).length,
      kernels: t && list(t.kernels).length,
      trace: t && t.trace && list(t.trace.lanes).length,
      memory: t && t.memory && (list(t.memory.devices).length || t.memory.predicted),
      modules: t && list(t.modules).length,
      distributed: r.distributed,
      compare: r.comparison,
      roofline: t && t.roofline,
      idle: t && (list(t.what_if).length || (t.idle && t.idle.total_us > 0) || t.critical_path),
      run: list(r.runs).length,
    };
  for (const [id] of kViews) document.getElementById("tab-" + id).classList.toggle("empty", !has[id]);
  const overview = document.getElementById("tab-overview"), n = t ? list(t.recommendations).length : 0;
  overview.replaceChildren(
    "Overview",
    n ? el("span", { class: "count", title: `${n} recommendations` }, String(n)) : "",
  );
}

function set_theme(theme, keep) {
  document.documentElement.dataset.theme = theme;
  if (keep) {
    try {
      localStorage.setItem("levin-theme", theme);
    } catch { /* no storage in a file: the switch holds until the page is closed */ }
  }
  dispatchEvent(new Event("levin-theme"));
}
function start_theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let kept = null;
  try {
    kept = localStorage.getItem("levin-theme");
  } catch { /* as above */ }
  set_theme(kept === "dark" || kept === "light" ? kept : dark.matches ? "dark" : "light", false);
  dark.addEventListener("change", (event) => set_theme(event.matches ? "dark" : "light", false));
}

function draw_header() {
  const r = page.report, t = current_trace(), traces = list(r.traces);
  document.title = `${r.title || "report"} \u2013 Levin report`;
  document.getElementById("title").textContent = r.title || "Levin report";
  const device = t && list(t.gpu_summary)[0];
  const facts = t
    ? [
      t.name,
      device ? `${list(t.gpu_summary).length > 1 ? list(t.gpu_summary).length + " \u00d7 " : ""}${device.name}` : "CPU",
      t.world_size > 1 ? `rank ${t.rank} of ${t.world_size}` : null,
      `${format.count(t.events)} events`,
      isNumber(t.file_bytes) ? format.bytes(t.file_bytes) : null,
      format.time(t.duration_us),
    ]
    : list(r.runs).map((x) => x.path).slice(0, 3);
  document.getElementById("facts").replaceChildren(...facts.filter(Boolean).map((f) => el("span", null, f)));
  const chooser = el("select", {
    "aria-label": "Trace",
    on: { change: (event) => choose_trace(Number(event.target.value)) },
  }, traces.map((x, i) => el("option", { value: i, selected: i === page.trace }, trace_label(x, traces))));
  document.getElementById("choose").replaceChildren(...(traces.length > 1 ? [chooser] : []));
}
function make_tools() {
  document.getElementById("tools").append(
    el("span", { id: "choose" }),
    el("button", {
      class: "button wide",
      type: "button",
      title: "The numbers of this page",
      on: { click: () => save_text("report.json", JSON.stringify(page.report), "application/json") },
    }, "JSON"),
    el("button", { class: "button wide", type: "button", on: { click: () => print() } }, "Print"),
    el(
      "button",
      {
        class: "button icon",
        type: "button",
        "aria-label": "Light or dark",
        on: { click: () => set_theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true) },
      },
      el(
        "svg",
        { width: 18, height: 18, viewBox: "0 0 18 18", "aria-hidden": "true" },
        el("circle", { cx: 9, cy: 9, r: 6.5, fill: "none", stroke: "currentColor", "stroke-width": 1.6 }),
        el("path", { d: "M9 2.5a6.5 6.5 0 0 1 0 13z", fill: "currentColor" }),
      ),
    ),
  );
}
function trace_label(t, traces) {
  const parts = [];
  const runs = [...new Set(traces.map((x) => x.run || ""))];
  if (runs.length > 1) parts.push(short_names(runs)[runs.indexOf(t.run || "")]);
  if (traces.some((x) => x.world_size > 1)) parts.push("rank " + t.rank);
  else parts.push(t.worker || t.name);
  if (traces.some((x) => x.span > 1)) parts.push("span " + t.span);
  return parts.join(" \u00b7 ");
}
function choose_trace(i) {
  page.trace = i;
  page.kept = {};
  redraw_page();
  remember("t", "");
}

/** Draws the open view again, and the others when they are opened. */
function redraw_page() {
  page.drawn.clear();
  draw_header();
  mark_tabs();
  open_view(page.view, false);
}

/** A run without a trace has its curves to show. */
const first_view = () => (list(page.report.traces).length || !list(page.report.runs).length ? "overview" : "run");

function on_hash() {
  const options = hash_options(), i = Number(options.trace);
  if (options.trace !== undefined && i !== page.trace && list(page.report.traces)[i]) {
    page.trace = i;
    redraw_page();
  }
  open_view(options.view || first_view(), false);
}

function start() {
  start_theme();
  make_tabs();
  try {
    page.report = JSON.parse(document.getElementById("report").textContent);
  } catch (error) {
    document.getElementById("main").replaceChildren(
      el("p", { class: "failed" }, "The numbers in this file cannot be read: " + error.message),
    );
    document.documentElement.dataset.ready = "1";
    return;
  }
  const options = hash_options();
  if (list(page.report.traces)[Number(options.trace)]) page.trace = Number(options.trace);
  page.view = options.view || first_view();
  listen_for_sources();
  make_tools();
  redraw_page();
  addEventListener("hashchange", on_hash);
  addEventListener("popstate", on_hash);
  addEventListener("beforeprint", () => {
    for (const [id] of kViews) draw_view(id);
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
      return;
    }
    const search = page.panels.get(page.view).querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  });
  start_live();
  document.documentElement.dataset.ready = "1";
}
start();
