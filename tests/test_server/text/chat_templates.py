"""Twelve chat templates of our own that use what public ones use, each in its maker's manner."""

TEMPLATES: dict[str, str] = {
    "chatml": (
        "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
        "You help.<|im_end|>\n{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
        "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "headers_with_date_and_tools": (
        "{{- bos_token }}{% set offset = 0 %}{%- if messages[0].role == 'system' -%}{% set system = "
        "messages[0].content | trim %}{% set offset = 1 %}{% else %}{% set system = '' %}{% endif %}\n"
        "<|head|>system<|/head|>\n\nToday: {{ strftime_now('%d %b') if strftime_now is defined else '1 Jan' }}\n"
        "{% if tools is not none %}{% for t in tools %}\n{{ t | tojson(indent=4) }}\n{% endfor %}{% endif %}"
        "{{ system }}<|eot|>{%- for m in messages[offset:] %}<|head|>{{ m['role'] }}<|/head|>\n\n"
        "{{ m['content'] | trim }}<|eot|>{%- endfor %}{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n"
        "{% endif %}"
    ),
    "brackets_that_alternate": (
        "{{ bos_token }}{% set ns = namespace(index=0) %}{% for m in messages %}{% if (m['role'] == 'user') != "
        "(ns.index % 2 == 0) and m['role'] not in ['system', 'tool'] and not m.get('tool_calls') %}"
        "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% if m['role'] == 'user' %}"
        "{{ '[INST] ' ~ m['content'] ~ ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ ' ' ~ (m['content'] or '') "
        "~ eos_token }}{% endif %}{% if m['role'] in ['user', 'assistant'] %}{% set ns.index = ns.index + 1 %}"
        "{% endif %}{% endfor %}"
    ),
    "macro_for_calls": (
        "{%- macro call(c) -%}<call>{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</call>"
        "{%- endmacro -%}{% for m in messages %}<{{ m.role }}>{% if m.content %}{{ m.content }}{% endif %}"
        "{% for c in m.tool_calls or [] %}{{ call(c) }}{% endfor %}</{{ m.role }}>\n{% endfor %}"
    ),
    "thinking_left_out_of_history": (
        "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 "
        "%}{% endif %}{% endfor %}{% for m in messages %}{% set text = m.content or '' %}{% if '</think>' in text and "
        "loop.index0 < ns.last %}{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
        "{{ m.role | capitalize }}: {{ text }}\n{% endfor %}{% if add_generation_prompt %}Assistant: "
        "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    ),
    "generation_tags": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
        "{% endgeneration %}{% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
    ),
    "loop_controls": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{% if loop.index > 3 %}{% break %}"
        "{% endif %}{{ loop.index }}/{{ loop.length }} {{ m.role }}: {{ m.content }}{{ '' if loop.last else ' | ' }}"
        "{% endfor %}"
    ),
    "whitespace_control": (
        "\n  {%- for m in messages %}\n    {%- if m.role == 'user' %}\n      Q: {{ m.content }}\n    {%- else %}\n"
        "      {{- '\\nA: ' }}{{ m.content }}\n    {%- endif %}\n  {%- endfor %}\n  {% if add_generation_prompt %}\n"
        "A:\n  {% endif %}"
    ),
    "filters": (
        "{{ messages | map(attribute='role') | join(',') }};{{ messages | selectattr('role', 'equalto', 'user') | list "
        "| length }};{{ messages | rejectattr('role', 'in', ['system']) | map(attribute='content') | map('string') | "
        "map('upper') | join('|') }};{{ (messages | last).content | default('none', true) | replace('a', '4') }};"
        "{{ messages[0].items() | list | length }};{{ 'é' | tojson }}"
    ),
    "python_methods": (
        "{% for m in messages %}{% if m.content is string and m.content.startswith('W') %}{{ m.content.strip().title() "
        "}}{% elif m.content is none %}-{% else %}{{ m.content[::-1][:5] }}{% endif %};{% endfor %}"
        "{{ '%s-%d' % ('x', messages | length) }}{{ [1, 2][-1] }}{{ messages is iterable and messages is not string }}"
    ),
    "json_in_order": (
        "{{ tools | tojson(separators=(',', ':')) if tools else '' }}{{ {'b': 1, 'a': [true, none, 1.5, '<&>\"']} | "
        "tojson }}{{ messages | tojson(indent=2, ensure_ascii=false) }}"
    ),
    "set_blocks_and_nested_scopes": (
        "{% set head %}<{{ messages[0].role }}>{% endset %}{% with total = messages | length %}{{ head }}{{ total }}"
        "{% endwith %}{% for m in messages if m.role != 'system' %}{% set outer = loop %}{% for word in "
        "(m.content or '').split() %}{{ outer.index }}.{{ loop.index }}{{ word if not loop.first else word | upper }} "
        "{% else %}(nothing){% endfor %}{% endfor %}{{ bos_token if bos_token is defined else '' }}"
    ),
}
