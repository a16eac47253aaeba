"""The page of a report in a browser: page_browser.py find | reports FOLDER | check FOLDER.

find: exits with 77 where there is no browser. reports: writes the reports as JSON. check: opens the pages that were made of them.
"""
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import browser  # noqa: E402
import page_report  # noqa: E402

HERE = pathlib.Path(__file__).parent
VIEWS = ["overview", "operators", "kernels", "trace", "memory", "modules", "distributed", "compare", "roofline", "idle", "run"]
HOSTILE = ["<script>window.injected = 1</script>", "</script><script>window.injected = 2</script>", "<img src=x onerror='window.injected = 3'>",
           "\"><svg onload=window.injected=4>", "javascript:window.injected=5", "<!-- <script>", "\u2028\u2029\u202e", "__proto__", "constructor", "${window.injected=6}"]
failures = []


def expect(condition, line):
    if not condition:
        failures.append(line)
        print("FAILED:", line)


def hostile(value, count=[0]):
    """The same report with every text replaced, and hostile keys of sources."""
    if isinstance(value, dict):
        return {k: hostile(v) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(v) for v in value]
    if isinstance(value, str):
        count[0] += 1
        return HOSTILE[count[0] % len(HOSTILE)]
    return value


def reports(folder):
    plain = page_report.report(steps=3, spans=90, rows=12)
    bad = hostile(plain)
    for trace in bad["traces"]:  # words that the page looks for stay
        trace["trace"]["kinds"] = page_report.KINDS
    nothing = {"schema": 1, "title": "nothing", "traces": [], "distributed": None, "comparison": None, "runs": []}
    bare = {"schema": 1, "title": "bare", "traces": [{k: ([] if isinstance(v, list) else None if isinstance(v, dict) else v) for k, v in plain["traces"][0].items()}], "distributed": None, "comparison": None, "runs": []}
    for name, report in (("plain", plain), ("hostile", bad), ("nothing", nothing), ("bare", bare), ("large", page_report.report(steps=40, spans=24000, rows=2000))):
        (folder / (name + ".json")).write_text(json.dumps(report, ensure_ascii=False), encoding="utf-8")


def address(folder, name, view):
    return (folder / (name + ".html")).as_uri() + "#" + view


def show(page, view):
    page.evaluate(f"document.getElementById('tab-{view}').click()")
    page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(() => done(true), 10)))")


def check_views(page, folder, name):
    page.open(address(folder, name, "overview"))
    for view in VIEWS:
        show(page, view)
        text = page.evaluate(f"document.getElementById('view-{view}').innerText")
        expect(text and len(text) > 40, f"{name}: {view} draws something")
        expect("cannot be drawn" not in (text or ""), f"{name}: {view} draws: {text[:200] if text else ''}")
        expect("undefined" not in text and "NaN" not in text and "[object" not in text, f"{name}: {view} has no undefined, NaN or [object")
        expect(page.evaluate("location.hash").startswith("#" + view), f"{name}: the address names {view}")
    expect(page.errors() == [], f"{name}: no error in the console: {page.errors()[:3]}")
    expect(page.requests() == [], f"{name}: nothing is loaded: {page.requests()[:3]}")
    expect(page.evaluate("window.injected === undefined"), f"{name}: no script of a name has run")
    return page.evaluate("document.querySelectorAll('script, img, iframe, object').length")


def check_units(page, folder):
    """Units of the comparison open, the one that differs most first."""
    page.open(address(folder, "plain", "compare"))
    rows = "[...document.querySelectorAll('#view-compare .unit-tree .unit-row .unit-name')].filter(n => n.checkVisibility()).map(n => n.innerText)"
    page.evaluate("new Promise(done => setTimeout(() => done(true), 50))")
    expect(page.evaluate(rows) == ["resnet", "resnet.layer2", "resnet.layer1"], f"plain: the only unit of the model is open: {page.evaluate(rows)}")
    page.evaluate("document.querySelectorAll('#view-compare .unit-tree summary')[1].click()")
    page.evaluate("new Promise(done => setTimeout(() => done(true), 50))")
    expect("resnet.layer2.conv1" in page.evaluate(rows), f"plain: a unit opens: {page.evaluate(rows)}")
    expect("of different ranks" in page.evaluate("document.getElementById('view-compare').innerText"), "plain: the comparison says that ranks differ")


def check_path_lane(page, folder):
    """The critical path is a lane of the timeline."""
    lanes = page.evaluate("(() => { const r = JSON.parse(document.getElementById('report').textContent).traces[0]; const t = with_critical_path(r.trace, r.critical_path); return [t.lanes.length - r.trace.lanes.length, t.lanes[0].group, t.lanes[0].spans.length === r.critical_path.segments.length, t.names[t.lanes[0].spans[0][3]] === r.critical_path.segments[0].name]; })()")
    expect(lanes == [1, "Critical path", True, True], f"plain: the critical path is a lane: {lanes}")


def check_empty(page, folder):
    """Empty views say why, and how to record them."""
    page.open(address(folder, "nothing", "overview"))
    for view in VIEWS[1:]:
        show(page, view)
        expect(page.evaluate(f"document.querySelectorAll('#view-{view} .empty-view').length") == 1, f"nothing: {view} says why it is empty")


def check_table(page, folder):
    show(page, "operators")
    rows = page.evaluate("document.querySelectorAll('#view-operators tbody tr').length")
    expect(rows < 120, f"large: the table draws {rows} rows of 2000")
    slow = page.evaluate("""(async () => {
      const box = document.querySelector('#view-operators .scroll'); const times = [];
      for (let i = 0; i < 40; ++i) { const begin = performance.now(); box.scrollTop += 700; box.dispatchEvent(new Event('scroll')); box.offsetHeight; times.push(performance.now() - begin);
        await new Promise(requestAnimationFrame); }
      return times.sort((a, b) => a - b)[times.length / 2]; })()""")
    expect(slow < 150, f"large: a scroll of the table takes {slow:.0f} ms")
    page.evaluate("(() => { const i = document.querySelector('#view-operators input'); i.value = 'convolution_20'; i.dispatchEvent(new Event('input')); })()")
    expect(page.evaluate("document.querySelector('#view-operators .count').textContent").endswith("of 2,000 rows"), "large: the filter counts its rows")
    page.evaluate("document.querySelectorAll('#view-operators th button')[1].click()")
    expect(page.evaluate("document.querySelectorAll('#view-operators th')[1].getAttribute('aria-sort')") == "descending", "large: a click on a head sorts")


def check_timeline(page, folder):
    show(page, "trace")
    middle = page.evaluate("(() => { const b = document.querySelector('#view-trace canvas').getBoundingClientRect(); return [b.left + b.width / 2, b.top + 60]; })()")
    before = page.evaluate("document.querySelector('#view-trace canvas').toDataURL().length")
    begin = time.monotonic()
    for _ in range(10):
        page.mouse("mouseWheel", *middle, deltaX=0, deltaY=-120, modifiers=2)
    expect(time.monotonic() - begin < 4, f"large: ten wheel steps take {time.monotonic() - begin:.1f} s")
    page.evaluate("new Promise(done => setTimeout(() => done(true), 400))")
    expect(before != page.evaluate("document.querySelector('#view-trace canvas').toDataURL().length"), "large: the wheel zooms the timeline")
    zoomed = page.evaluate("location.hash")
    expect("t=" in zoomed, f"large: the address keeps the place: {zoomed}")
    page.mouse("mousePressed", *middle, button="left", clickCount=1)
    page.mouse("mouseReleased", *middle, button="left", clickCount=1)
    page.key("0")
    page.evaluate("new Promise(done => setTimeout(() => done(true), 400))")
    expect(page.evaluate("location.hash") != zoomed, "large: the key 0 shows all")
    page.evaluate("(() => { const i = document.querySelector('#view-trace input'); i.value = 'wgrad'; i.dispatchEvent(new Event('input')); i.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'})); })()")
    expect("found" in page.evaluate("document.querySelector('#view-trace [role=status]').textContent"), "large: the search counts what it finds")
    expect("wgrad" in page.evaluate("document.querySelector('#view-trace .detail').textContent"), "large: Enter goes to the first that was found")
    expect(page.errors() == [], f"large: no error: {page.errors()[:2]}")


def check_slivers(page):
    """A long span that begins in the pixel of a short one is drawn."""
    painted = page.evaluate("""(async () => {
      const view = new SpanView({ label: 'test', names: ['a', 'b'], kinds: ['op'], height: () => 200, write: String, color: () => 0, describe: () => [],
        lanes: [{ name: '', plain: true, rows: 1, spans: [[0, 0, 1, 0, 0, 1], [0, 1.5, 1, 0, 0, 1], [0, 3, 900000, 1, 0, 1], [0, 950000, 50000, 0, 0, 1]] }] });
      document.getElementById('main').append(view.node);
      await new Promise(done => setTimeout(done, 200));
      const c = view.canvas.getContext('2d'), at = x => [...c.getImageData(Math.round(x * view.canvas.width), kRuler + 10, 1, 1).data].join();
      const out = [at(0.6) === at(0.97), at(0.6) !== at(0.925)];
      view.node.remove();
      return out; })()""")
    expect(painted == [True, True], f"a long span after short ones is drawn, a gap is not: {painted}")


def check(folder):
    page = browser.Browser(browser.find())
    try:
        page.size(1280, 900)
        elements = check_views(page, folder, "plain")
        expect(elements == check_views(page, folder, "hostile"), "hostile: names make no element")
        check_views(page, folder, "bare")
        check_empty(page, folder)
        check_units(page, folder)
        check_path_lane(page, folder)
        # A second time where the machine had other work.
        size = (folder / "large.json").stat().st_size
        seconds = page.open(address(folder, "large", "overview"))
        if seconds > 2:
            seconds = min(seconds, page.open(address(folder, "large", "overview")))
        print(f"a report of {size / 1e6:.0f} MB opens in {seconds:.2f} s")
        expect(size > 20e6, f"the large report has {size} bytes")
        expect(seconds < 3, f"a report of {size / 1e6:.0f} MB opens in {seconds:.2f} s")
        check_table(page, folder)
        check_timeline(page, folder)
        check_slivers(page)
        page.size(390, 844, mobile=True)
        page.open(address(folder, "plain", "overview"))
        for view in VIEWS:
            show(page, view)
            wide = page.evaluate("document.documentElement.scrollWidth")
            expect(wide <= 390, f"phone: {view} is {wide} pixels wide")
        for scheme in ("dark", "light"):
            page.scheme(scheme)
            page.open(address(folder, "plain", "overview"))
            expect(page.evaluate("document.documentElement.dataset.theme") == scheme, f"the page is {scheme} where the system is")
    finally:
        page.close()
    return 1 if failures else 0


if __name__ == "__main__":
    command = sys.argv[1]
    if command == "find":
        sys.exit(0 if browser.find() else 77)
    folder_ = pathlib.Path(sys.argv[2])
    sys.exit(reports(folder_) if command == "reports" else check(folder_))
