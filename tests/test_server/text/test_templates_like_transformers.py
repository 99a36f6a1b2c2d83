"""Chat templates render as `apply_chat_template` of transformers does, on what public templates are made of."""

from typing import Any

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from forebay_server.errors import InvalidRequestError
from forebay_server.text.chat_template import ChatTemplate
from forebay_server.text.model_text import load_model_text
from forebay_server.text.tokenizer import Tokenizer
from tests.fakes.tiny_model import write_tiny_model
from tests.test_server.text.chat_templates import TEMPLATES

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Of a town; <quotes> & "marks" - é',
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"town": "Genève"}}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [{"role": "user", "content": "What is the capital of France?"}],
    "with a system prompt": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "héllo\n\nyou"}],
    "several turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "W c"},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": ""},
    ],
    "a call and its result": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"degrees": 5}'},
    ],
    "roles that do not alternate": [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}],
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_model_text(write_tiny_model(tmp_path_factory.mktemp("tiny"))).tokenizer


def theirs(tokenizer: Tokenizer, source: str, conversation: list[dict[str, Any]], **names: Any) -> str | None:
    """What transformers renders; None when the template refuses."""
    try:
        rendered: Any = render_jinja_template(
            [conversation],
            chat_template=source,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
            **names,
        )
    except (jinja2.TemplateError, TypeError, ValueError):
        return None
    text: str = rendered[0][0]
    return text


def ours(tokenizer: Tokenizer, source: str, conversation: list[dict[str, Any]], **names: Any) -> str | None:
    add_generation_prompt = names.pop("add_generation_prompt")
    try:
        return ChatTemplate(source, tokenizer).prompt(
            conversation, add_generation_prompt=add_generation_prompt, variables=names
        )
    except InvalidRequestError:
        return None


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
def test_prompts_are_those_of_transformers(
    tokenizer: Tokenizer, source: str, conversation: list[dict[str, Any]]
) -> None:
    for tools in (None, [TOOL, TOOL]):
        for names in ({"add_generation_prompt": True}, {"add_generation_prompt": False, "enable_thinking": False}):
            wanted = theirs(tokenizer, source, conversation, tools=tools, **names)
            assert ours(tokenizer, source, conversation, tools=tools, **names) == wanted


@pytest.mark.parametrize("said", ["Once upon", " Once upon ", "1 < 2\n\n"])
@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
def test_a_last_message_that_goes_on_ends_as_transformers_ends_it(tokenizer: Tokenizer, source: str, said: str) -> None:
    conversation = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": said}]
    wanted = theirs(tokenizer, source, conversation, add_generation_prompt=False, continue_final_message=True)
    if wanted is None:  # its mark does not come through templates that change letters
        assert source in {
            TEMPLATES[name] for name in ("python_methods", "json_in_order", "set_blocks_and_nested_scopes")
        }
        return
    token_ids = ChatTemplate(source, tokenizer).prompt_token_ids(
        conversation, add_generation_prompt=False, continue_final_message=True
    )
    # where a template shows a message twice, transformers leaves its own mark in the prompt
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == wanted.replace("CONTINUE_FINAL_MESSAGE_TAG ", "")


def test_a_template_without_the_last_message_cannot_go_on(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        ChatTemplate("{{ messages[0].content }}", tokenizer).prompt_token_ids(
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}], continue_final_message=True
        )
    assert refused.value.param == "continue_final_message"


def test_most_pairs_render_and_some_are_refused(tokenizer: Tokenizer) -> None:
    rendered = [
        theirs(tokenizer, source, conversation, add_generation_prompt=True)
        for source in TEMPLATES.values()
        for conversation in CONVERSATIONS.values()
    ]
    assert len(rendered) == 60
    assert 1 <= rendered.count(None) <= 10


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ ''['__class__'] }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum.__globals__['os'].popen('id') }}",
        "{{ (''|attr('__class__')).mro() }}",
        "{{ strftime_now.__globals__ }}",
        "{% set x = messages.clear() %}",
        "{% set x = messages[0].update({'role': 'system'}) %}",
        "{% for i in range(10000000) %}{{ i }}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_the_sandbox_holds(tokenizer: Tokenizer, source: str) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    try:
        rendered = ChatTemplate(source, tokenizer).prompt(conversation)
    except InvalidRequestError:
        rendered = ""
    assert rendered == ""
    assert conversation == [{"role": "user", "content": "hi"}]
