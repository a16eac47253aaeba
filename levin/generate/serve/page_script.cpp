#include "levin/generate/serve/page.h"

namespace levin::serve {

std::string_view page_script() {
  return R"('use strict';
const $ = id => document.getElementById(id);
const log = $('log'), input = $('input'), send = $('send');
let chat = { turns: [] }; // {role, content} of each turn; an answer belongs to the chat that it was asked in
let running = null;      // AbortController of the answer that is being written
let kind = 'chat';       // 'chat', 'text' (no chat template) or 'embeddings'

// Settings.
const kept = { system: '', temperature: '0.7', top_p: '1', max_tokens: '512', stop: '', seed: '' };
const settings = Object.assign({}, kept, read(localStorage, 'levin'));
function read(where, name) {
  try { return JSON.parse(where.getItem(name)) || {}; } catch { return {}; }
}
for (const name of Object.keys(kept)) {
  const field = $(name);
  field.value = settings[name];
  field.addEventListener('input', () => {
    settings[name] = field.value;
    try { localStorage.setItem('levin', JSON.stringify(settings)); } catch { /* a private window keeps nothing */ }
    show_values();
  });
}
const key = $('key');
key.value = read(sessionStorage, 'levin-key').key || '';
key.addEventListener('input', () => {
  try { sessionStorage.setItem('levin-key', JSON.stringify({ key: key.value })); } catch { /* as above */ }
});
function show_values() {
  for (const name of ['temperature', 'top_p']) $(name + '-value').textContent = Number(settings[name]).toFixed(2);
}
show_values();
function show_settings(open) {
  $('settings').hidden = $('shade').hidden = !open;
  $('open-settings').setAttribute('aria-expanded', String(open));
  (open ? $('system') : input).focus();
}
$('open-settings').onclick = () => show_settings(true);
$('close-settings').onclick = $('shade').onclick = () => show_settings(false);

// Requests.
function headers() {
  const all = { 'Content-Type': 'application/json' };
  if (key.value) all.Authorization = 'Bearer ' + key.value;
  return all;
}
function body(turns) {
  const all = { stream: true, stream_options: { include_usage: true }, temperature: Number(settings.temperature),
    top_p: Number(settings.top_p) };
  if (settings.max_tokens) all.max_tokens = Number(settings.max_tokens);
  if (settings.stop) all.stop = settings.stop;
  if (settings.seed !== '') all.seed = Number(settings.seed);
  if (kind === 'text') return Object.assign(all, { prompt: turns.map(turn => turn.content).join('') });
  const system = settings.system.trim();
  return Object.assign(all, { messages: (system ? [{ role: 'system', content: system }] : []).concat(turns) });
}
async function reason(response) {
  try { return (await response.json()).error.message; } catch { return 'The server answered ' + response.status + '.'; }
}
// The events of a stream, one by one.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const lines = rest.split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data: ')) continue;
      if (line === 'data: [DONE]') return;
      yield JSON.parse(line.slice(6));
    }
  }
}

// The chat.
function add_turn(role, text) {
  $('empty').hidden = true;
  const turn = document.createElement('div');
  turn.className = 'turn ' + role;
  const words = document.createElement('div');
  words.className = role === 'user' ? 'text plain' : 'text';
  words.textContent = text;  // never as HTML
  turn.append(words);
  log.append(turn);
  log.scrollTop = log.scrollHeight;
  return turn;
}
function add_meta(turn, text, failed) {
  const meta = document.createElement('div');
  meta.className = failed ? 'meta failed' : 'meta';
  meta.textContent = text;
  turn.append(meta);
}
function at_end() { return log.scrollHeight - log.scrollTop - log.clientHeight < 40; }
function set_running(controller) {
  running = controller;
  send.textContent = running ? 'Stop' : 'Send';
  send.classList.toggle('stop', Boolean(running));
}
function summary(count, usage, began, first, finish) {
  const now = performance.now();
  const tokens = usage ? usage.completion_tokens : count;
  const parts = [tokens + (tokens === 1 ? ' token' : ' tokens')];
  if (first && tokens > 1) parts.push((1000 * (tokens - 1) / Math.max(now - first, 1)).toFixed(1) + ' tokens/s');
  if (first) parts.push('first after ' + seconds((first - began) / 1000));
  if (finish === 'length') parts.push('cut at the limit');
  if (finish === 'stopped') parts.push('stopped');
  return parts.join(' · ');
}
async function answer(chat, asked) {
  const controller = new AbortController();
  set_running(controller);
  const turn = add_turn('assistant', '');
  turn.classList.add('writing');
  const words = new GrowingText(turn.firstChild, kind === 'text', follow => {
    if (follow) log.scrollTop = log.scrollHeight;
  });
  turn.firstChild.classList.toggle('plain', kind === 'text');
  const began = performance.now();
  let text = '', count = 0, usage = null, first = 0, finish = '', failure = '';
  try {
    const path = kind === 'text' ? 'v1/completions' : 'v1/chat/completions';
    const response = await fetch(path, { method: 'POST', headers: headers(), body: JSON.stringify(body(chat.turns)), signal: controller.signal });
    if (!response.ok) throw new Error(await reason(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) usage = event.usage;
      const choice = event.choices && event.choices[0];
      if (!choice) continue;
      const more = kind === 'text' ? choice.text : choice.delta.content;
      if (choice.finish_reason) finish = choice.finish_reason;
      if (!more) continue;
      if (!first) first = performance.now();
      ++count;
      text += more;
      words.add(more);
    }
  } catch (error) {
    if (controller.signal.aborted) finish = 'stopped';
    else failure = error instanceof TypeError ? 'The server cannot be reached.' : error.message;
  }
  words.end();
  if (running === controller) set_running(null);
  const is_shown = turn.isConnected;  // else a new chat has begun
  turn.classList.remove('writing');
  if (text || (!failure && finish !== 'stopped')) {
    chat.turns.push({ role: 'assistant', content: text });
  } else {
    // Nothing was answered: the message goes back to where it was written.
    const message = chat.turns.pop();
    asked.classList.add('unsent');
    if (is_shown && !input.value) input.value = message.content;
    if (!failure) {
      asked.remove();
      turn.remove();
      if (is_shown) $('empty').hidden = chat.turns.length > 0;
    }
  }
  if (!is_shown) return;
  if (failure) add_meta(turn, failure, true);
  else add_meta(turn, summary(count, usage, began, first, finish), false);
  if (at_end() || failure) log.scrollTop = log.scrollHeight;
  fit();
}
function submit() {
  if (running) return running.abort();
  const text = kind === 'text' ? input.value : input.value.trim();
  if (!text.trim()) return;
  input.value = '';
  fit();
  chat.turns.push({ role: 'user', content: text });
  answer(chat, add_turn('user', text));
}
function fit() {
  input.style.height = 'auto';
  input.style.height = input.scrollHeight + 'px';
}
$('composer').addEventListener('submit', event => { event.preventDefault(); submit(); });
input.addEventListener('input', fit);
input.addEventListener('keydown', event => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) submit();
});
document.addEventListener('keydown', event => {
  if (event.key !== 'Escape') return;
  if (!$('settings').hidden) show_settings(false);
  else if (running) running.abort();
});
$('new').onclick = () => {
  if (running) running.abort();
  set_running(null);
  chat = { turns: [] };
  for (const turn of log.querySelectorAll('.turn')) turn.remove();
  $('empty').hidden = false;
  input.focus();
};

// Speed, queue and memory.
const rates = Array(121).fill(0);
function grouped(number) { return Math.round(number).toLocaleString('en'); }
function bytes(number) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let i = 0;
  for (; number >= 1000 && i < 4; ++i) number /= 1000;
  return (number < 10 && i ? number.toFixed(2) : number < 100 && i ? number.toFixed(1) : Math.round(number)) + ' ' + units[i];
}
function seconds(number) {
  if (number < 1) return Math.round(1000 * number) + ' ms';
  if (number < 60) return number.toFixed(number < 10 ? 1 : 0) + ' s';
  if (number < 3600) return Math.floor(number / 60) + ' min';
  return Math.floor(number / 3600) + ' h ' + Math.floor(number % 3600 / 60) + ' min';
}
function draw_rates() {
  const top = Math.max(...rates, 1), wide = 120, high = 36;
  const points = rates.map((rate, i) => (wide - rates.length + 1 + i).toFixed(1) + ' ' + (high - 1 - (high - 3) * rate / top).toFixed(2));
  const line = 'M' + points.join('L');
  $('spark-line').setAttribute('d', line);
  $('spark-area').setAttribute('d', line + 'L' + wide + ' ' + high + 'L' + (wide - rates.length + 1) + ' ' + high + 'Z');
}
function set_state(word, style) {
  $('state').textContent = word;
  $('state').className = 'state ' + style;
}
let last = null;
function show(stats) {
  $('model').textContent = stats.model;
  document.title = stats.model + ' · Levin';
  if (kind !== stats.kind) {
    kind = stats.kind;
    $('system-label').hidden = kind !== 'chat';
    input.placeholder = kind === 'text' ? 'Begin a text' : 'Message';
    input.disabled = send.disabled = kind === 'embeddings';
    $('empty').firstElementChild.textContent = kind === 'chat' ? 'Ask something' : kind === 'text' ? 'Begin a text' : 'Embeddings';
    $('empty-text').textContent = kind === 'chat' ? 'Words appear as the model writes them. Nothing leaves this server.'
      : kind === 'text' ? 'The model has no chat template: it continues what you write.'
      : 'This model turns texts into vectors: POST /v1/embeddings.';
  }
  const now = performance.now();
  const rate = last ? Math.max(0, stats.generated_tokens - last.tokens) * 1000 / Math.max(now - last.at, 1) : 0;
  last = { tokens: stats.generated_tokens, at: now };
  rates.push(rate);
  if (rates.length > 121) rates.shift();
  draw_rates();
  $('rate').textContent = rate < 100 && rate > 0 ? rate.toFixed(1) : grouped(rate);
  $('running').textContent = grouped(stats.running);
  $('waiting').textContent = grouped(stats.waiting);
  const blocks = Math.max(stats.cache_blocks, 1);
  const used = 100 * stats.cache_blocks_used / blocks, reusable = 100 * stats.cache_blocks_reusable / blocks;
  $('cache').textContent = used.toFixed(used < 10 && used > 0 ? 1 : 0) + ' %';
  $('cache-size').textContent = 'of ' + bytes(stats.cache_bytes);
  $('cache-used').style.width = used + '%';
  $('cache-kept').style.width = reusable + '%';
  const hits = stats.prompt_tokens ? 100 * stats.prefix_hit_tokens / stats.prompt_tokens : 0;
  $('cache-note').textContent = reusable.toFixed(0) + ' % kept · ' + hits.toFixed(0) + ' % of prompts hit';
  $('memory').textContent = bytes(stats.memory_bytes);
  $('memory-peak').textContent = 'peak ' + bytes(stats.memory_peak_bytes);
  $('new-tokens').textContent = grouped(stats.generated_tokens);
  $('prompt-tokens').textContent = grouped(stats.prompt_tokens);
  $('finished').textContent = grouped(stats.finished);
  $('uptime').textContent = seconds(stats.uptime_seconds);
  set_state(stats.running ? 'writing' : 'ready', 'ready');
}
async function watch() {
  if (!document.hidden) {
    try {
      const response = await fetch('v1/stats', { headers: headers() });
      if (response.status === 401) set_state('needs an API key', 'away');
      else if (response.ok) show(await response.json());
      else set_state('not ready', 'away');
    } catch {
      set_state('not reachable', 'away');
    }
  }
  setTimeout(watch, 1000);
}
watch();
)";
}

}  // namespace levin::serve
