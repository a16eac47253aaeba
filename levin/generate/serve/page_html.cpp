#include "levin/generate/serve/page.h"

namespace levin::serve {

std::string_view page_icon() {
  return R"(<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'>
<rect width='32' height='32' rx='8' fill='#0f766e'/>
<path d='M10 7v18h13' fill='none' stroke='#fff' stroke-width='3.5' stroke-linecap='round' stroke-linejoin='round'/>
<circle cx='21' cy='11.5' r='3' fill='#99f6e4'/>
</svg>
)";
}

std::string_view page_html() {
  return R"(<!doctype html>
<html lang='en'>
<head>
<meta charset='utf-8'>
<meta name='viewport' content='width=device-width, initial-scale=1'>
<meta name='color-scheme' content='light dark'>
<title>Levin</title>
<link rel='icon' href='icon.svg' type='image/svg+xml'>
<link rel='stylesheet' href='page.css'>
<script src='page.markdown.js' defer></script>
<script src='page.js' defer></script>
</head>
<body>
<header>
  <img src='icon.svg' alt='' width='28' height='28'>
  <h1 id='model'>Levin</h1>
  <span id='state' class='state' role='status'>connecting</span>
  <span class='space'></span>
  <button id='new' class='quiet' type='button'>New chat</button>
  <button id='open-settings' class='quiet' type='button' aria-expanded='false' aria-controls='settings'>Settings</button>
</header>

<div class='columns'>
  <main>
    <div id='log' aria-live='polite'>
      <div id='empty'>
        <h2>Ask something</h2>
        <p id='empty-text'>Words appear as the model writes them. Nothing leaves this server.</p>
      </div>
    </div>
    <form id='composer'>
      <textarea id='input' rows='1' placeholder='Message' aria-label='Message' autofocus></textarea>
      <button id='send' type='submit'>Send</button>
    </form>
    <p class='hint'><kbd>Enter</kbd> sends, <kbd>Shift</kbd> <kbd>Enter</kbd> begins a line, <kbd>Esc</kbd> stops</p>
  </main>

  <aside aria-label='Speed, queue and memory'>
    <section class='card speed'>
      <h3>Tokens/s</h3>
      <p class='figure' id='rate'>0</p>
      <svg id='spark' viewBox='0 0 120 36' preserveAspectRatio='none' role='img' aria-label='Tokens per second, last two minutes'>
        <path id='spark-area' class='area'/><path id='spark-line' class='line'/>
      </svg>
    </section>
    <section class='card pair'>
      <div><h3>Running</h3><p class='figure' id='running'>0</p></div>
      <div><h3>Waiting</h3><p class='figure' id='waiting'>0</p></div>
    </section>
    <section class='card'>
      <h3>Cache</h3>
      <p class='figure small'><span id='cache'>0 %</span> <small id='cache-size'></small></p>
      <div class='bar'><div id='cache-used'></div><div id='cache-kept'></div></div>
      <p class='note' id='cache-note'></p>
    </section>
    <section class='card'>
      <h3>Memory</h3>
      <p class='figure small'><span id='memory'>0</span> <small id='memory-peak'></small></p>
    </section>
    <section class='card'>
      <h3>Since the start</h3>
      <dl>
        <dt>New tokens</dt><dd id='new-tokens'>0</dd>
        <dt>Prompt tokens</dt><dd id='prompt-tokens'>0</dd>
        <dt>Texts</dt><dd id='finished'>0</dd>
        <dt>Up</dt><dd id='uptime'>0 s</dd>
      </dl>
    </section>
  </aside>
</div>

<div id='shade' hidden></div>
<section id='settings' aria-label='Settings' hidden>
  <div class='row'><h2>Settings</h2><button id='close-settings' class='quiet' type='button'>Done</button></div>
  <label id='system-label'>System message<textarea id='system' rows='3' placeholder='None'></textarea></label>
  <label>Temperature <output id='temperature-value'></output>
    <input id='temperature' type='range' min='0' max='2' step='0.05'></label>
  <label>Top p <output id='top_p-value'></output>
    <input id='top_p' type='range' min='0.05' max='1' step='0.05'></label>
  <label>Most tokens of an answer<input id='max_tokens' type='number' min='1' step='1'></label>
  <label>Stop at<input id='stop' type='text' placeholder='None'></label>
  <label>Seed<input id='seed' type='number' step='1' placeholder='Another one each time'></label>
  <label>API key<input id='key' type='password' autocomplete='off' placeholder='None'></label>
  <p class='note'>Settings stay in this browser. The key is forgotten when the tab is closed.</p>
</section>
</body>
</html>
)";
}

}  // namespace levin::serve
