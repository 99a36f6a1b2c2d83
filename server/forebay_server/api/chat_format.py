"""How chat answers are written: messages, deltas and their log-probabilities."""

import secrets
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay_server.api.generation import ChoiceUpdate, TokenDetail, Usage
from forebay_server.api.logprobs import chat_logprobs, prompt_logprobs, token_namer
from forebay_server.api.openai_types import ChatBody
from forebay_server.api.running import ChunkFormat, Envelope
from forebay_server.text.message_parts import CallArguments, CallStart, Content, Part, Reasoning
from forebay_server.text.tokenizer import Tokenizer

_SHORT_ID_ALPHABET = string.ascii_letters + string.digits


@dataclass(slots=True)
class _Message:
    """What was written of one choice."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)


class ChatFormat(ChunkFormat):
    """One answer.

    Args:
        tokenizer: of the model.
        body: says what the answer tells besides its text.
        with_short_ids: tool calls get ids of nine characters.
    """

    id_prefix = "chatcmpl"

    def __init__(self, tokenizer: Tokenizer, body: ChatBody, *, with_short_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._with_logprobs = bool(body.logprobs)
        self._num_prompt_logprobs = body.prompt_logprobs
        self._with_reasoning = body.include_reasoning is not False
        self._with_token_ids = bool(body.return_token_ids)
        self._name_token = token_namer(tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._with_short_ids = with_short_ids
        self._begun: dict[int, bool] = {}
        """Choices that have had their first chunk, and whether they have called a tool."""

    def whole(self, envelope: Envelope, updates: list[ChoiceUpdate], usage: Usage) -> dict[str, Any]:
        """See `AnswerFormat.whole`."""
        choices = []
        for index in sorted({update.index for update in updates}):
            own = [update for update in updates if update.index == index]
            details = [detail for update in own for detail in update.details]
            message = self._message([part for update in own for part in update.parts])
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs(details) if self._with_logprobs else None,
                    "finish_reason": _finish_reason(own[-1], has_calls="tool_calls" in message),
                    "stop_reason": own[-1].stop_reason,
                    **({"token_ids": [i for update in own for i in update.token_ids]} if self._with_token_ids else {}),
                }
            )
        answer = {**_head(envelope, "chat.completion"), "choices": choices, "usage": usage.as_dict()}
        if self._num_prompt_logprobs is not None:
            details = next((update.prompt_details for update in updates if update.prompt_details), [])
            answer["prompt_logprobs"] = prompt_logprobs(details, self._tokenizer, self._num_prompt_logprobs)
        return {**answer, **self._prompt(updates[0])}

    def chunks(self, envelope: Envelope, update: ChoiceUpdate) -> Iterator[dict[str, Any]]:
        """See `ChunkFormat.chunks`."""
        head = _head(envelope, "chat.completion.chunk")
        if update.index not in self._begun:
            self._begun[update.index] = False
            first = _delta(update.index, {"role": "assistant", "content": ""})
            yield {**head, **self._prompt(update), "choices": [first]}
        tokens = self._tokens(update)
        for part in update.parts:
            if isinstance(part, Reasoning) and not self._with_reasoning:
                continue
            self._begun[update.index] |= isinstance(part, CallStart)
            yield {**head, "choices": [_delta(update.index, self._part_delta(part)) | tokens]}
            tokens = {}
        if tokens:
            yield {**head, "choices": [_delta(update.index, {"content": ""}) | tokens]}
        if update.finish_reason is not None:
            last = _delta(update.index, {}) | {
                "finish_reason": _finish_reason(update, has_calls=self._begun[update.index]),
                "stop_reason": update.stop_reason,
            }
            yield {**head, "choices": [last]}

    def usage_chunk(self, envelope: Envelope) -> dict[str, Any]:
        """See `ChunkFormat.usage_chunk`."""
        return {**_head(envelope, "chat.completion.chunk"), "choices": []}

    def _tokens(self, update: ChoiceUpdate) -> dict[str, Any]:
        """What one chunk says of the tokens that are new."""
        told: dict[str, Any] = {}
        if self._with_logprobs and update.details:
            told["logprobs"] = self._logprobs(update.details)
        if self._with_token_ids and update.token_ids:
            told["token_ids"] = update.token_ids
        return told

    def _prompt(self, first: ChoiceUpdate) -> dict[str, Any]:
        return {"prompt_token_ids": first.prompt_token_ids} if self._with_token_ids else {}

    def _logprobs(self, details: Sequence[TokenDetail]) -> dict[str, Any]:
        return chat_logprobs(details, self._tokenizer, self._name_token)

    def _message(self, parts: Sequence[Part]) -> dict[str, Any]:
        said = _Message()
        for part in parts:
            match part:
                case Content():
                    said.content.append(part.text)
                case Reasoning():
                    said.reasoning.append(part.text)
                case CallStart():
                    function = {"name": part.name, "arguments": ""}
                    said.calls.append({"id": self._new_id(), "type": "function", "function": function})
                case CallArguments():
                    said.calls[part.index]["function"]["arguments"] += part.text
        content = "".join(said.content)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if said.calls:
            message |= {"content": content or None, "tool_calls": said.calls}
        if said.reasoning and self._with_reasoning:
            reasoning = "".join(said.reasoning)
            message |= {"content": content or None, "reasoning_content": reasoning, "reasoning": reasoning}
        return message

    def _part_delta(self, part: Part) -> dict[str, Any]:
        match part:
            case Content():
                return {"content": part.text}
            case Reasoning():
                return {"reasoning_content": part.text, "reasoning": part.text}
            case CallStart():
                function = {"name": part.name, "arguments": ""}
                call = {"index": part.index, "id": self._new_id(), "type": "function", "function": function}
                return {"tool_calls": [call]}
            case CallArguments():
                return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}

    def _new_id(self) -> str:
        if self._with_short_ids:
            return "".join(secrets.choice(_SHORT_ID_ALPHABET) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


def _finish_reason(update: ChoiceUpdate, *, has_calls: bool) -> str | None:
    return "tool_calls" if has_calls and update.finish_reason == "stop" else update.finish_reason


def _head(envelope: Envelope, kind: str) -> dict[str, Any]:
    return {"id": envelope.id, "object": kind, "created": envelope.created, "model": envelope.model}


def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
