#!/usr/bin/env python3
"""Writes tests/text/fixtures/chat/cases.json: templates as transformers renders them.

    pip install transformers jinja2
    tests/text/make_chat_fixtures.py

The templates are written for this test in the manner of published ones.
"""
import json
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = Path(__file__).resolve().parent / "fixtures" / "chat"

CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
HEADERS = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: tools\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("only one tool call") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
    {%- elif message.role == "tool" %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""
INST = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
THINK = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
"""
SMALL = [
    "a\n", "a\n\n", "{# c #}\nx", "  {# c #}  x", "x {%- if true %} y {% endif -%}  z", "{% if true %}\n  a\n{% endif %}\nb\n", "  {% if true %}\n  a\n  {% endif %}\n  b",
    "{{ 1 }}\n{{ 2 }}\n", "{%+ if true %}a{% endif %}", "  {%+ if true %}a{% endif +%}\nb", "{% raw %}{{ x }}{% endraw %}!", "{%- raw -%} {% if %} {%- endraw -%} x",
    "{% for i in range(3) %}\n{{ i }}{{ ',' if not loop.last }}\n{% endfor %}", "{% for a, b in {'x': 1, 'y': [2]}.items() %}{{ loop.index }}{{ a }}={{ b }};{% endfor %}",
    "{% for i in [3, 1, 2] if i > 1 %}{{ i }}{% else %}none{% endfor %}", "{% for i in [] %}x{% else %}empty{% endfor %}", "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for x in 'héy' %}{{ loop.revindex }}{{ x }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}", "{% for i in range(4) %}{{ loop.cycle('a', 'b') }}{{ loop.first }}{{ loop.length }}{% endfor %}",
    "{% set x = 1 %}{% for i in range(2) %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(a=1) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b is defined }}",
    "{% macro m(a, b=2) %}[{{ a }}|{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m() }}", "{% macro r(n) %}{{ n }}{% if n > 0 %}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(3) }}",
    "{% set t %}  block {{ 1 + 1 }} {% endset %}[{{ t }}]", "{% set t | upper | trim %} x {% endset %}[{{ t }}]", "{% filter upper %}abc{{ 1 }}{% endfilter %}", "{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}in{% endcall %}",
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 6 / 2 }} {{ 1.5 * 2 }} {{ 1e20 }} {{ 0.1 + 0.2 }} {{ 1e-7 }} {{ 10 ** 2 }}",
    "{{ 1 if false else 2 }}{{ 'x' if false }}{{ (1, 2) | length }}{{ not true and false or true }}", "{{ 1 < 2 < 3 }} {{ 1 < 2 > 5 }} {{ 'a' in 'abc' }} {{ 2 not in [1, 3] }} {{ 'k' in {'k': 1} }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }} {{ 'ab' * 3 }} {{ [1] + [2, 'x'] }} {{ -3 | abs }} {{ 'x' 'y' }}", "{{ [1, 'a', none, true, 1.5, {'k': 'v'}, \"it's\", 'q\"q', '\\n'] }}",
    "{{ 'Hello World' | upper }} {{ 'ÀÉß' | lower }} {{ 'straße' | upper }} {{ 'hello wORLD' | title }} {{ 'hELLO' | capitalize }}", "{{ '  x ' | trim }}|{{ '--x--' | trim('-') }}|{{ 'a,b' | replace(',', ';') }}|{{ 'aaa' | replace('a', 'b', 2) }}",
    "{{ [1, 2] | join(', ') }} {{ [{'a': 1}, {'a': 2}] | join('-', attribute='a') }} {{ 'abc' | join('.') }}", "{{ x | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | default('n') }}",
    "{{ [3, 1, 2] | sort }} {{ [3, 1, 2] | sort(reverse=true) }} {{ ['b', 'A', 'c'] | sort }} {{ {'b': 1, 'a': 2} | dictsort }}", "{{ [{'r': 'u', 'n': 1}, {'r': 'a', 'n': 2}] | selectattr('r', 'equalto', 'u') | list }}",
    "{{ [{'r': 'u'}, {}] | map(attribute='r') | list }} {{ ['a', 'b'] | map('upper') | join }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, none] | reject('none') | list }} {{ [{'a': 0}, {'a': 1}] | rejectattr('a') | list }}",
    "{{ {'a': [1, 2.5, 'é', none, true], 'b': {'c': '\"<&>'}} | tojson }}", "{{ {'a': [1, {}], 'b': []} | tojson(indent=2) }}", "{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, sort_keys=true) }}", "{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':')) }}",
    "{{ 'a b  c'.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'abc'[1] }} {{ 'abcdef'[1:4] }} {{ 'abc'[::-1] }} {{ [1, 2, 3, 4][-2:] }} {{ [1, 2, 3][::2] }} {{ 'abc'[-1] }} {{ [1, 2, 3][5:] }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ ' x '.strip() }}| {{ 'xxaxx'.strip('x') }} {{ 'a-b'.replace('-', '+') }} {{ 'abcabc'.find('c') }} {{ 'abc'.upper() }} {{ 'a\\nb\\r\\nc'.splitlines() }} {{ 'pre-x'.removeprefix('pre-') }}",
    "{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 5) }} {{ {'a': 1}['a'] }} {{ {'a': 1}.a }} {{ {'a': 1}.b is defined }} {{ {'a': 1} | items | list }} {{ {'a': 1}.keys() | list }}",
    "{{ 1 is defined }} {{ x is defined }} {{ x is undefined }} {{ none is none }} {{ 's' is string }} {{ 1 is number }} {{ 1 is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ [] is iterable }} {{ {} is mapping }} {{ 'a' is sequence }} {{ 4 is even }} {{ 4 is divisibleby 2 }} {{ 3 is not odd }} {{ 1 is eq 1 }} {{ 'a' is in ['a'] }} {{ true is true }} {{ 0 is false }}",
    "{{ '12' | int + 1 }} {{ 'x' | int }} {{ '1.5' | float }} {{ 3.7 | int }} {{ 2.5 | round }} {{ 2.567 | round(2) }} {{ [1, 2, 3] | sum }} {{ [1, 2] | first }} {{ [1, 2] | last }} {{ [1, 2] | reverse | list }} {{ 'abc' | reverse }} {{ [1, 1, 2] | unique | list }} {{ [3, 1] | max }}",
    "{{ 'a\\nb\\n\\nc' | indent(2) }} {{ 'a\\nb' | indent(2, true) }}", "{{ '%s-%d' | format('x', 3) }} {{ 'a %s' % 'b' }}", "{{ '<a>' | e }} {{ '<a>' | safe }} {{ 5 | string + 'x' }}", "{{ undefinedvar }}|{{ messages[9] }}|{{ messages[0].nope }}",
    "{%- for m in messages %}\n    {%- if loop.first and m.role == 'system' %}\nS:{{ m.content }}\n    {%- else %}\n{{ m.role[0] | upper }}:{{ m.content }}\n    {%- endif %}\n{%- endfor %}\nend", "{% generation %}gen{% endgeneration %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{{ dict(a=1, b='x') }}",
    "{% if messages is defined and messages | length > 0 and messages[0].role in ['system', 'user'] %}y{% endif %}", "{{ messages | map(attribute='role') | join(',') }}", "{% if x is not defined or x %}u{% endif %}", "{{ (messages | last).content }}", "{{ '\\u00e9\\x41\\t|' }}", "{{ 'tab\\there' }}",
]
BAD = ["{% if %}", "{{ 1 + }}", "{% for x in y %}", "{{ x.y }}", "{% include 'x' %}", "{{ 1 | nope }}", "{{ 1 is nope }}", "{{ raise_exception('no') }}", "a\n{{ 'a' + 1 }}", "{{ messages.append(1) }}", "{{ 1 / 0 }}", "{% endif %}", "{{ 'x }}", "{# x", "{% set x.y = 1 %}", "{{ ''.__class__.__mro__ }}"]
CHATS = [
    {"messages": [{"role": "user", "content": " Hi there "}], "add_generation_prompt": True},
    {"messages": [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "Hi 😀"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"}, {"role": "user", "content": "<r>x</r>"}], "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": "Weather?"}, {"role": "assistant", "tool_calls": [{"function": {"name": "get", "arguments": {"city": "Köln", "n": 2}}}], "content": ""}, {"role": "tool", "content": "{\"t\": 3}"}],
     "tools": [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}], "add_generation_prompt": True},
]


def render(template, chat):
    values = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **chat}
    return _compile_jinja_template(template).render(**values), values


def main():
    rows = []
    for template in [CHATML, HEADERS, INST, THINK]:
        for chat in CHATS:
            try:
                text, values = render(template, chat)
                rows.append({"template": template, "variables": values, "text": text})
            except Exception:
                rows.append({"template": template, "variables": {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **chat}, "fails": True})
    for template in SMALL:
        text, values = render(template, CHATS[1])
        rows.append({"template": template, "variables": {"messages": values["messages"]}, "text": text})
    for template in BAD:
        try:
            render(template, CHATS[1])
            raise SystemExit(f"{template!r} is fine")
        except SystemExit:
            raise
        except Exception:
            rows.append({"template": template, "variables": {"messages": []}, "fails": True})
    HERE.mkdir(parents=True, exist_ok=True)
    for name, template in (("chatml", CHATML), ("headers", HEADERS), ("inst", INST), ("think", THINK), ("small", "\n".join(SMALL[:40])), ("more", "\n".join(SMALL[40:]))):
        (HERE / f"{name}.jinja").write_text(template)  # seeds for tests/fuzz
    (HERE / "cases.json").write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
