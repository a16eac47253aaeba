"""Tables and a picture of cases that took turns (turns.py)."""
import html
import os
import shutil
import subprocess
import time

BLUE, GREY, LIGHT, SHADE, TEXT, SOFT = "#2563eb", "#71717a", "#d4d4d8", "#f4f4f5", "#18181b", "#52525b"


def output(*command):
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def where(root):
    """Date, machine and commit of a measurement."""
    gpu = output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    cores = len(os.sched_getaffinity(0))
    machine = f"{gpu[0]}, {cores} cores" if gpu else f"{cores} cores ({os.uname().machine}), no GPU"
    commit = output("git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*")
    return {"date": time.strftime("%Y-%m-%d"), "machine": machine, "commit": commit or os.environ.get("LEVIN_COMMIT", "unknown")}


def time_of(figure):
    return f"{figure['ms']:.2f} ({figure['spread'][0]:.2f} to {figure['spread'][1]:.2f})" if figure else ""


def markdown(place, titles, results):
    """Two tables: both sides at their best, and every mode. results: what turns.compare gave."""
    lines = [f"{place['date']}, {place['machine']}, commit {place['commit']}.", "",
             "| training step, ms: median (least to most) | Levin | mode | PyTorch + Lightning Fabric, best | mode | ratio (range) |",
             "|---|---|---|---|---|---|"]
    for r in results:
        levin, peer = r["levin"].get(r["levin_mode"]), r["peer"].get(r["peer_mode"])
        ratio = f"{r['ratio']:.2f} ({r['ratio_range'][0]:.2f} to {r['ratio_range'][1]:.2f})" if r["ratio"] else ""
        lines.append(f"| {titles.get(r['case'], r['case'])} | {time_of(levin)} | {r['levin_mode'] or ''} | {time_of(peer)} | {r['peer_mode'] or ''} | {ratio} |")
    lines += ["", "| every mode | side | mode | step, ms | a second | peak GB | reserved GB | first step, s | loss |", "|---|---|---|---|---|---|---|---|---|"]
    for r in results:
        for side, name in (("levin", "Levin"), ("peer", "PyTorch + Lightning")):
            for mode, figure in r[side].items():
                rate = next((f"{value:.0f} {key[:-6]}" for key, value in figure.items() if key.endswith("_per_s")), "")
                cells = [f"{figure[key]:.{digits}f}" if isinstance(figure.get(key), (int, float)) else ""
                         for key, digits in (("peak_gb", 2), ("reserved_gb", 2), ("first_s", 2), ("loss", 4))]
                lines.append(f"| {titles.get(r['case'], r['case'])} | {name} | {mode} | {figure['ms']:.2f} | {rate} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture(place, titles, results):
    """Bars of speed, the best of the peer being 1, as SVG. Cases without both sides are left out."""
    shown = [r for r in results if r["ratio"]]
    bar, gap, length, top = 15, 22, 430, 108
    # A letter of these sizes is at most so wide, mostly.
    left = 48 + int(7.3 * max((len(titles.get(r["case"], r["case"])) for r in shown), default=0))
    rows = []
    most = 1.0
    for r in shown:
        levin, peer, eager = r["levin"][r["levin_mode"]], r["peer"][r["peer_mode"]], r["peer"].get("eager")
        bars = [("Levin", BLUE, levin["ms"], r["levin_mode"]), ("peer", GREY, peer["ms"], r["peer_mode"])]
        if eager and r["peer_mode"] != "eager":
            bars.append(("eager", LIGHT, eager["ms"], "eager"))
        rows.append((titles.get(r["case"], r["case"]), peer["ms"], bars))
        most = max(most, *(peer["ms"] / ms for _, _, ms, _ in bars))
    height = top + sum(len(bars) * (bar + 3) + gap for _, _, bars in rows)
    width = left + length + 24 + int(6.2 * max((len(f"{ms:.1f} ms, {mode}") for _, _, bars in rows for _, _, ms, mode in bars), default=0))
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
             'font-family="system-ui, \'Segoe UI\', Helvetica, Arial, sans-serif">', f'<rect width="{width}" height="{height}" fill="#ffffff"/>']

    def text(x, y, words, size=13, fill=SOFT, anchor="start", weight=400):
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}">{html.escape(words)}</text>')

    def rect(x, y, w, h, fill):
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h}" rx="2" fill="{fill}"/>')

    text(24, 32, "Speed of a training step: longer is faster", 16, TEXT, weight=600)
    text(24, 54, f"relative to PyTorch + Lightning Fabric in its fastest mode; {place['machine']}, {place['date']}, {place['commit']}")
    x = 24
    for words, fill in (("Levin", BLUE), ("PyTorch + Lightning, fastest mode", GREY), ("PyTorch + Lightning, eager", LIGHT)):
        rect(x, 72, 12, 12, fill)
        text(x + 18, 83, words)
        x += 40 + 7 * len(words)
    y = top
    for title, unit, bars in rows:
        text(left - 12, y + len(bars) * (bar + 3) / 2 + 3, title, fill=TEXT, anchor="end")
        for _, fill, ms, mode in bars:
            rect(left, y, length, bar, SHADE)
            rect(left, y, max(unit / ms / most * length, 2), bar, fill)
            text(left + length + 10, y + bar - 3, f"{ms:.1f} ms, {mode}", 11)
            y += bar + 3
        y += gap
    return "\n  ".join(parts) + "\n</svg>\n"
