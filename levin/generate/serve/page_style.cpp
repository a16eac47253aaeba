#include "levin/generate/serve/page.h"

namespace levin::serve {

std::string_view page_style() {
  return R"(:root {
  --paper: #f7f7f5; --surface: #ffffff; --ink: #1c1d1f; --muted: #63666c; --line: #e4e4e0; --soft: #eeeeea;
  --accent: #0f766e; --accent-ink: #ffffff; --bubble: #e3f1ee; --warn: #b42318; --shadow: 0 1px 2px rgb(0 0 0 / 5%);
  color-scheme: light;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #121315; --surface: #1a1c1f; --ink: #ebecee; --muted: #9a9ea6; --line: #2a2d32; --soft: #23262a;
    --accent: #2dd4bf; --accent-ink: #06302b; --bubble: #17332f; --warn: #f97066; --shadow: none;
    color-scheme: dark;
  }
}
* { box-sizing: border-box; }
[hidden] { display: none !important; }
html, body { height: 100%; }
body {
  margin: 0; display: flex; flex-direction: column; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif;
}
h1, h2, h3, p, dl, dd { margin: 0; }
button, input, textarea { font: inherit; color: inherit; }
button { cursor: pointer; border: 0; border-radius: 10px; padding: 8px 16px; background: var(--accent); color: var(--accent-ink);
  font-weight: 600; }
button:hover { filter: brightness(1.08); }
button:disabled { opacity: .45; cursor: default; filter: none; }
button.quiet { background: transparent; color: var(--muted); font-weight: 500; padding: 6px 12px; }
button.quiet:hover { background: var(--soft); color: var(--ink); filter: none; }
button.stop { background: var(--ink); color: var(--paper); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }

header { display: flex; align-items: center; gap: 10px; padding: 10px 20px; border-bottom: 1px solid var(--line); background: var(--surface); }
header h1 { font-size: 16px; font-weight: 650; letter-spacing: -.01em; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.space { flex: 1; }
.state { font-size: 13px; color: var(--muted); display: inline-flex; align-items: center; gap: 6px; white-space: nowrap; }
.state::before { content: ''; width: 8px; height: 8px; border-radius: 50%; background: var(--muted); }
.state.ready::before { background: var(--accent); }
.state.away::before { background: var(--warn); }

.columns { flex: 1; min-height: 0; display: grid; grid-template-columns: minmax(0, 1fr) 272px; }
main { min-height: 0; display: flex; flex-direction: column; }
#log { flex: 1; overflow-y: auto; padding: 28px 24px 12px; scrollbar-gutter: stable both-edges; }
#log > * { max-width: 760px; margin-left: auto; margin-right: auto; }
#empty { text-align: center; padding-top: 18vh; color: var(--muted); }
#empty h2 { color: var(--ink); font-size: 26px; letter-spacing: -.02em; font-weight: 650; margin-bottom: 6px; }
.turn { margin-bottom: 24px; display: flex; flex-direction: column; }
.turn .text { overflow-wrap: anywhere; }
.turn .text.plain { white-space: pre-wrap; }
.turn.unsent { opacity: .55; }
.text p, .text li { white-space: pre-line; }
.text :is(p, ul, ol, pre, blockquote, .wide, h3, h4, h5, h6) { margin: 0 0 12px; }
.text :is(h3, h4, h5, h6) { margin-top: 18px; line-height: 1.3; letter-spacing: -.01em; }
.text h3 { font-size: 20px; }
.text h4 { font-size: 18px; }
.text :is(h5, h6) { font-size: 16px; }
.text :is(ul, ol) { padding-left: 24px; }
.text li > :is(p, ul, ol, .wide) { margin: 0 0 4px; }
.text li > :is(pre, .wide) { margin: 4px 0 8px; }
.text pre { position: relative; white-space: pre; overflow-x: auto; padding: 12px 14px; background: var(--soft); border: 1px solid var(--line);
  border-radius: 12px; font-size: 14px; line-height: 1.5; }
.text pre[data-language]::before { content: attr(data-language); float: right; margin-left: 12px; font-size: 12px; color: var(--muted); }
.text code { font-family: ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
.text :not(pre) > code { font-size: .9em; padding: 1px 5px; border-radius: 5px; background: var(--soft); }
.text blockquote { border-left: 3px solid var(--line); padding-left: 14px; color: var(--muted); }
.text hr { border: 0; border-top: 1px solid var(--line); margin: 18px 0; }
.text a { color: var(--accent); }
.text .wide { overflow-x: auto; }
.text table { border-collapse: collapse; font-size: 15px; }
.text :is(th, td) { border: 1px solid var(--line); padding: 5px 10px; text-align: left; vertical-align: top; }
.text th { background: var(--soft); font-weight: 600; }
.text .right { text-align: right; }
.text .center { text-align: center; }
.text > :last-child > :last-child { margin-bottom: 0; }
.turn.user .text { align-self: flex-end; background: var(--bubble); padding: 9px 15px; border-radius: 18px 18px 4px 18px; max-width: 85%; }
.turn .meta { margin-top: 6px; font-size: 13px; color: var(--muted); font-variant-numeric: tabular-nums; }
.turn .meta.failed { color: var(--warn); }
.turn.writing .text::after { content: ''; display: inline-block; width: 8px; height: 1.05em; margin-left: 2px; vertical-align: -.18em;
  border-radius: 2px; background: var(--accent); animation: blink 1s steps(2) infinite; }
@keyframes blink { 50% { opacity: 0; } }
@media (prefers-reduced-motion: reduce) { .turn.writing .text::after { animation: none; } }

#composer { display: flex; align-items: flex-end; gap: 8px; width: calc(100% - 48px); max-width: 760px; margin: 0 auto; padding: 8px 8px 8px 16px;
  background: var(--surface); border: 1px solid var(--line); border-radius: 18px; box-shadow: var(--shadow); }
#composer:focus-within { border-color: var(--accent); }
#composer textarea { flex: 1; min-width: 0; border: 0; outline: 0; background: transparent; resize: none; max-height: 40vh; padding: 7px 0; line-height: 1.5; }
#composer textarea::placeholder, #settings ::placeholder { color: var(--muted); opacity: .8; }
#send { min-width: 76px; }
.hint { text-align: center; font-size: 12px; color: var(--muted); padding: 8px 16px 14px; }
kbd { font: inherit; padding: 1px 5px; border: 1px solid var(--line); border-radius: 5px; background: var(--surface); }

aside { border-left: 1px solid var(--line); padding: 16px; overflow-y: auto; display: flex; flex-direction: column; gap: 12px; }
.card { background: var(--surface); border: 1px solid var(--line); border-radius: 14px; padding: 12px 14px; box-shadow: var(--shadow); }
.card h3 { font-size: 12px; font-weight: 550; color: var(--muted); }
.figure { font-size: 28px; line-height: 1.25; font-weight: 650; letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.figure.small { font-size: 20px; }
.figure small { font-size: 13px; font-weight: 450; letter-spacing: 0; color: var(--muted); }
.pair { display: grid; grid-template-columns: 1fr 1fr; }
.note { font-size: 12px; color: var(--muted); }
#spark { display: block; width: 100%; height: 44px; margin-top: 6px; overflow: visible; }
#spark .line { fill: none; stroke: var(--accent); stroke-width: 1.75; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
#spark .area { fill: var(--accent); opacity: .12; }
.bar { display: flex; height: 8px; margin: 6px 0; border-radius: 4px; overflow: hidden; background: var(--soft); }
#cache-used { background: var(--accent); }
#cache-kept { background: var(--accent); opacity: .35; }
dl { display: grid; grid-template-columns: 1fr auto; gap: 2px 8px; font-size: 14px; margin-top: 4px; }
dt { color: var(--muted); }
dd { text-align: right; font-variant-numeric: tabular-nums; }

#shade { position: fixed; inset: 0; background: rgb(0 0 0 / 30%); }
#settings { position: fixed; top: 0; right: 0; bottom: 0; width: min(380px, 100%); overflow-y: auto; padding: 20px; background: var(--surface);
  border-left: 1px solid var(--line); display: flex; flex-direction: column; gap: 16px; }
#settings h2 { font-size: 20px; letter-spacing: -.01em; }
.row { display: flex; justify-content: space-between; align-items: center; }
label { font-size: 14px; font-weight: 550; display: block; }
label output { float: right; color: var(--muted); font-weight: 450; font-variant-numeric: tabular-nums; }
label input, label textarea { display: block; width: 100%; margin-top: 6px; font-weight: 400; }
label input:not([type=range]), label textarea { padding: 9px 12px; border: 1px solid var(--line); border-radius: 10px; background: var(--paper); }
label textarea { resize: vertical; }
input[type=range] { accent-color: var(--accent); }

@media (max-width: 860px) {
  header { padding: 8px 12px; gap: 8px; }
  .columns { display: flex; flex-direction: column; }
  main { flex: 1; }
  aside { order: -1; flex-direction: row; border-left: 0; border-bottom: 1px solid var(--line); background: var(--surface); padding: 8px 12px; gap: 0;
    overflow-x: auto; flex: none; }
  .card { border: 0; border-radius: 0; box-shadow: none; padding: 0 9px; flex: 1 0 auto; border-left: 1px solid var(--line); }
  .card:first-child { border-left: 0; padding-left: 0; }
  .pair { gap: 10px; }
  .figure, .figure.small { font-size: 16px; }
  .figure small { font-size: 11px; }
  .card h3 { font-size: 11px; }
  #spark, .bar, .card .note, .card:last-child, #cache-size, #memory-peak { display: none; }
  .speed { min-width: 64px; }
  #log { padding: 18px 16px 8px; scrollbar-gutter: auto; }
  #empty { padding-top: 14vh; }
  #composer { width: calc(100% - 24px); }
  .hint { display: none; }
  #composer { margin-bottom: 12px; }
}
@media (max-width: 480px) { .state { font-size: 0; gap: 0; } button.quiet { padding: 6px 8px; font-size: 15px; } }
)";
}

}  // namespace levin::serve
