// A page of `levin report --serve` asks its server now and then whether the run has new rows, and draws what they change.
const kAskEvery = 2000;

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

function start_live() {
  const live = document.documentElement.dataset.live;
  if (live === undefined) return;
  let [version, traces] = live.split("/").map(Number);
  const sign = el("span", { class: "live", role: "status" }, "live");
  document.getElementById("tools").prepend(sign);
  const look = async () => {
    try {
      const now = await ask("state");
      if (now.traces !== traces) show_report(await ask("report.json"));
      else if (now.version !== version) show_runs((await ask("runs.json")).runs);
      [version, traces] = [now.version, now.traces];
      sign.textContent = "live";
      sign.classList.remove("off");
    } catch {
      sign.textContent = "no answer";
      sign.classList.add("off");
    }
    setTimeout(look, kAskEvery);
  };
  setTimeout(look, kAskEvery);
}

/** Only the views of runs are drawn again: the timeline stays where it was moved to. */
function show_runs(runs) {
  page.report.runs = runs;
  page.drawn.delete("run");
  mark_tabs();
  if (page.view !== "run") return;
  const at = scrollY;
  draw_view("run");
  scrollTo(0, at);
}

function show_report(report) {
  page.report = report;
  redraw_page();
}
