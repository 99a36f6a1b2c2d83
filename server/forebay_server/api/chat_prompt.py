"""From the messages of a body to the token ids of a prompt, by the model's chat template."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from forebay_server.api.openai_types import ConversationBody, Message, Part, ToolCall
from forebay_server.api.request_params import check_text_length
from forebay_server.api.service import ServedModel
from forebay_server.errors import InvalidRequestError
from forebay_server.text.chat_template import ChatTemplate
from forebay_server.text.tool_prompt import with_tools_in_words


def chat_prompt(
    messages: Sequence[Message], body: ConversationBody, model: ServedModel, tools: Sequence[Mapping[str, Any]] = ()
) -> list[int]:
    """Token ids of a conversation; checked against nothing but the length of its text.

    Args:
        messages: at least one.
        body: how they become a prompt; that of a chat request, or of one that only wants to know its tokens.
        model: whose template renders it; one that knows nothing of tools gets them in words.
        tools: as OpenAI describes them.

    Raises:
        InvalidRequestError: the template cannot render them, or does not do what is asked.
    """
    try:
        return _token_ids(messages, body, model, tools)
    except RecursionError as error:
        raise InvalidRequestError(
            "the messages, or what comes with them, are nested too deeply", param="messages"
        ) from error


def _token_ids(
    messages: Sequence[Message], body: ConversationBody, model: ServedModel, tools: Sequence[Mapping[str, Any]]
) -> list[int]:
    check_conversation(messages, body)
    told = template_messages(messages)
    check_text_length(sum(len(str(message["content"])) for message in told), model, "messages")
    template = require_chat_template(model)
    if body.documents and not template.reads("documents"):
        raise InvalidRequestError(
            "the model's chat template does not read documents; put them into a message", param="documents"
        )
    if not template.reads("tools"):
        told, tools = with_tools_in_words(told, tools), ()
    goes_on = bool(body.continue_final_message)
    return template.prompt_token_ids(
        told,
        add_generation_prompt=body.add_generation_prompt is not False and not goes_on,
        continue_final_message=goes_on,
        variables=_variables(body),
        tools=tools,
    )


def check_conversation(messages: Sequence[Message], body: ConversationBody) -> None:
    """Refuse what can be refused without the model.

    Raises:
        InvalidRequestError: naming the field.
    """
    if not body.continue_final_message:
        return
    if body.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other; leave one out",
            param="continue_final_message",
        )
    if messages[-1].role != "assistant" or messages[-1].tool_calls:
        raise InvalidRequestError(
            "continue_final_message is only for a last message that is text of the assistant",
            param="continue_final_message",
        )


def require_chat_template(model: ServedModel) -> ChatTemplate:
    """The model's template.

    Raises:
        InvalidRequestError: it has none.
    """
    if model.text.chat_template is None:
        raise InvalidRequestError("the model has no chat template; use /v1/completions", param="messages")
    return model.text.chat_template


def template_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """The messages as chat templates expect them: content is one string, `developer` is `system`.

    Raises:
        InvalidRequestError: a message other than the assistant's has no content.
    """
    plain = []
    for index, message in enumerate(messages):
        content = message.content
        if content is None and message.role != "assistant":
            raise InvalidRequestError(
                f"messages[{index}] ({message.role}) has no content", param=f"messages[{index}].content"
            )
        role = "system" if message.role == "developer" else message.role
        extra = message.model_extra or {}
        if extra.get("function_call") is not None:
            raise InvalidRequestError(
                f"messages[{index}].function_call is not offered by this server; use tool_calls",
                param=f"messages[{index}].function_call",
                code="unsupported_parameter",
            )
        if extra.get("reasoning") is not None:  # templates read the older name
            extra = {"reasoning_content": extra["reasoning"], **extra}
        shown = {**extra, "role": role, "content": joined_text(content or "", f"messages[{index}].content")}
        if message.tool_calls:  # an empty list would make templates believe that there are calls
            shown["tool_calls"] = [_template_call(call) for call in message.tool_calls]
        plain.append(shown)
    return plain


def joined_text(content: str | Sequence[Part], path: str) -> str:
    """The text of a message, its parts on lines of their own.

    Args:
        content: text or parts.
        path: the field.

    Raises:
        InvalidRequestError: a part has no text.
    """
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.text is None else part.text
        if text is None:
            raise InvalidRequestError(f"{path}[{index}] has no text", param=f"{path}[{index}].text")
        texts.append(text)
    return "\n".join(texts)


def _variables(body: ConversationBody) -> dict[str, object]:
    """Names for the template; what the client says in its words goes before what it says in ours."""
    variables: dict[str, object] = {}
    if body.documents:
        variables["documents"] = body.documents
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            variables["enable_thinking"] = False
    return variables | (body.chat_template_kwargs or {})


def _template_call(call: ToolCall) -> dict[str, object]:
    """Templates write arguments as JSON themselves; what is none they get as it is."""
    try:
        arguments: object = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        arguments = call.function.arguments
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
