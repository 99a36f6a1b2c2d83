"""From a `/v1/responses` body to the chat body that asks for the same. Pure."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from forebay_server.api.chat_prompt import joined_text
from forebay_server.api.openai_types import ChatBody, GenerationBody
from forebay_server.api.responses_types import AllowedFunctions, FunctionChoice, InputItem, InputPart, ResponsesBody
from forebay_server.errors import InvalidRequestError

_OWN_FIELDS = frozenset({"model", "max_tokens", "n", "stream", "stream_options", *ResponsesBody.model_fields})
_CHAT_FIELDS = frozenset({"chat_template_kwargs", "documents", "include_reasoning"})
_PASSED_FIELDS = frozenset(GenerationBody.model_fields) - _OWN_FIELDS | _CHAT_FIELDS


_NAMES = (
    ("response_format.json_schema.schema", "text.format.schema"),
    ("max_completion_tokens", "max_output_tokens"),
    ("].function.", "]."),
)
"""How the chat endpoint calls fields that this one has, too."""


@contextmanager
def errors_in_own_words() -> Iterator[None]:
    """Errors name the fields of this endpoint's body, not the chat body's.

    Raises:
        InvalidRequestError: with other names.
    """
    try:
        yield
    except InvalidRequestError as error:
        message, param = error.message, error.param or ""
        for chat_name, name in _NAMES:
            message, param = message.replace(chat_name, name), param.replace(chat_name, name)
        param = "input" if param.startswith("messages") else param
        raise InvalidRequestError(message, param=param or None, code=error.code) from error


def chat_body(body: ResponsesBody) -> ChatBody:
    """The chat request.

    Raises:
        InvalidRequestError: an item of the input lacks what its type needs.
        RequestValidationError: a field that is passed on is wrong.
    """
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": _messages(body),
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stream": body.stream,
        "user": body.user,
        **{name: value for name, value in (body.model_extra or {}).items() if name in _PASSED_FIELDS},
    }
    if "message.output_text.logprobs" in (body.include or ()) or body.top_logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    if body.tools:
        fields["tools"] = [
            {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
            for tool in body.tools
        ]
        fields["parallel_tool_calls"] = body.parallel_tool_calls
    choice = body.tool_choice
    if isinstance(choice, FunctionChoice):
        fields["tool_choice"] = _named(choice)
    elif isinstance(choice, AllowedFunctions):
        allowed = {"mode": choice.mode, "tools": [_named(function) for function in choice.tools]}
        fields["tool_choice"] = {"type": "allowed_tools", "allowed_tools": allowed}
    elif choice is not None and (body.tools or choice != "auto"):
        fields["tool_choice"] = choice
    if body.text is not None and body.text.format is not None and body.text.format.type != "text":
        fields["response_format"] = _response_format(body)
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    try:
        return ChatBody.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


def _named(function: FunctionChoice) -> dict[str, Any]:
    return {"type": "function", "function": {"name": function.name}}


def _response_format(body: ResponsesBody) -> dict[str, Any] | None:
    form = body.text.format if body.text else None
    if form is None or form.type != "json_schema":
        return {"type": "json_object"}
    if form.json_schema is None or form.name is None:
        raise InvalidRequestError("a json_schema format needs name and schema", param="text.format")
    wanted = {"name": form.name, "description": form.description, "schema": form.json_schema, "strict": form.strict}
    described = {name: value for name, value in wanted.items() if value is not None}
    return {"type": "json_schema", "json_schema": described}


def _messages(body: ResponsesBody) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
        return messages
    for index, item in enumerate(body.input):
        match item.type:
            case None | "message":
                messages.append({"role": _needed(item, "role", index), "content": _text(item.content, index)})
            case "function_call":
                call = {
                    "id": _needed(item, "call_id", index),
                    "type": "function",
                    "function": {
                        "name": _needed(item, "name", index),
                        "arguments": _needed(item, "arguments", index),
                    },
                }
                if messages and messages[-1].get("tool_calls"):
                    messages[-1]["tool_calls"].append(call)
                elif messages and messages[-1]["role"] == "assistant":
                    messages[-1]["tool_calls"] = [call]
                else:
                    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            case "function_call_output":
                call_id = _needed(item, "call_id", index)
                messages.append({"role": "tool", "tool_call_id": call_id, "content": _text(item.output, index)})
            case "reasoning":
                pass  # what was thought before an earlier answer; templates leave it out as well
    if not messages:
        raise InvalidRequestError("the input has no messages", param="input")
    return messages


def _needed(item: InputItem, name: str, index: int) -> str:
    value: str | None = getattr(item, name)
    if value is None:
        raise InvalidRequestError(
            f"input[{index}] ({item.type or 'message'}) has no {name}", param=f"input[{index}].{name}"
        )
    return value


def _text(content: str | list[InputPart] | None, index: int) -> str:
    if content is None:
        raise InvalidRequestError(f"input[{index}] has no content", param=f"input[{index}].content")
    return joined_text(content, f"input[{index}].content")
