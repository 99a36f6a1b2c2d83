"""A response of `/v1/responses` while it grows: chat deltas in, events and the whole response out. Pure.

Event names and fields: OpenAI's reference of streaming events for the Responses API.
"""

import secrets
from collections.abc import Iterator
from typing import Any

from forebay_server.api.generation import Usage
from forebay_server.api.responses_types import ResponsesBody
from forebay_server.errors import ApiError

Event = dict[str, Any]


class GrowingResponse:
    """One response. Of its items (reasoning, message, function calls) only the last is open.

    Args:
        response_id: `resp_...`.
        created: Unix seconds.
        model: the name that the client used.
        body: what was asked; echoed in part.
    """

    def __init__(self, response_id: str, created: int, model: str, body: ResponsesBody) -> None:
        self.response = _new_response(response_id, created, model, body)
        self._sequence_number = 0
        self._output: list[dict[str, Any]] = self.response["output"]
        self._is_open = False
        self._call_index: int | None = None
        """Of the function call that is open, in the chat deltas."""
        self._finish_reason: str | None = None

    def begin(self) -> Iterator[Event]:
        """The first events."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response={**self.response, "output": []})

    def add(self, choice: dict[str, Any]) -> Iterator[Event]:
        """One choice of a chat chunk: what it says anew."""
        delta = choice["delta"]
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        if thought:
            yield from self._open("reasoning")
            yield from self._append_text("response.reasoning_text.delta", thought, {})
        logprobs = (choice.get("logprobs") or {}).get("content") or []
        if delta.get("content") or logprobs:
            yield from self._open("message")
            yield from self._append_text(
                "response.output_text.delta", delta.get("content") or "", {"logprobs": logprobs}
            )
        for call in delta.get("tool_calls") or ():
            yield from self._add_call(call)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def end(self, usage: Usage) -> Iterator[Event]:
        """The last events; `response` is whole then."""
        if not self._output:
            yield from self._open("message")
        is_whole = self._finish_reason != "length"
        yield from self._close("completed" if is_whole else "incomplete")
        status = "completed" if is_whole else "incomplete"
        self.response["status"] = status
        self.response["incomplete_details"] = None if is_whole else {"reason": "max_output_tokens"}
        self.response["usage"] = _usage(usage)
        yield self._event(f"response.{status}", response=self.response)

    def fail(self, error: ApiError) -> Iterator[Event]:
        """The last event when the answer cannot be finished."""
        self.response["status"] = "failed"
        self.response["error"] = {"code": "server_error", "message": error.message}
        yield self._event("response.failed", response=self.response)

    # ---- items ----

    def _open(self, kind: str) -> Iterator[Event]:
        """Make the open item one of this kind, with an empty part of text."""
        if self._is_open and self._output[-1]["type"] == kind:
            return
        yield from self._close("completed")
        item: dict[str, Any]
        if kind == "message":
            item = {"id": _id("msg"), "type": "message", "role": "assistant", "status": "in_progress", "content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            item = {"id": _id("rs"), "type": "reasoning", "summary": [], "status": "in_progress", "content": []}
            part = {"type": "reasoning_text", "text": ""}
        yield self._item_event("response.output_item.added", item)
        item["content"].append(part)
        yield self._event("response.content_part.added", **self._place(), content_index=0, part=dict(part))

    def _append_text(self, kind: str, text: str, fields: dict[str, Any]) -> Iterator[Event]:
        part = self._output[-1]["content"][0]
        part["text"] += text
        if "logprobs" in fields:
            part["logprobs"] += fields["logprobs"]
        yield self._event(kind, **self._place(), content_index=0, delta=text, **fields)

    def _add_call(self, call: dict[str, Any]) -> Iterator[Event]:
        function = call.get("function") or {}
        is_open_call = self._is_open and self._output[-1]["type"] == "function_call"
        if not is_open_call or self._call_index != call["index"]:
            yield from self._close("completed")
            self._call_index = call["index"]
            item = {
                "id": _id("fc"),
                "type": "function_call",
                "status": "in_progress",
                "call_id": call.get("id") or _id("call"),
                "name": function.get("name") or "",
                "arguments": "",
            }
            yield self._item_event("response.output_item.added", item)
        piece = function.get("arguments")
        if piece:
            self._output[-1]["arguments"] += piece
            yield self._event("response.function_call_arguments.delta", **self._place(), delta=piece)

    def _close(self, status: str) -> Iterator[Event]:
        if not self._is_open:
            return
        item = self._output[-1]
        if item["type"] == "function_call":
            told = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("response.function_call_arguments.done", **self._place(), **told)
        else:
            part = item["content"][0]
            is_message = item["type"] == "message"
            kind = "response.output_text.done" if is_message else "response.reasoning_text.done"
            logprobs = {"logprobs": part["logprobs"]} if is_message else {}
            yield self._event(kind, **self._place(), content_index=0, text=part["text"], **logprobs)
            yield self._event("response.content_part.done", **self._place(), content_index=0, part=part)
        item["status"] = status
        self._is_open = False
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _item_event(self, kind: str, item: dict[str, Any]) -> Event:
        self._output.append(item)
        self._is_open = True
        shown = {**item, "content": []} if "content" in item else dict(item)
        return self._event(kind, output_index=len(self._output) - 1, item=shown)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return event


def _new_response(response_id: str, created: int, model: str, body: ResponsesBody) -> dict[str, Any]:
    text = body.text.model_dump(exclude_none=True, by_alias=True) if body.text else {}
    choice = body.tool_choice
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}} | text,
        "tool_choice": choice.model_dump() if choice is not None and not isinstance(choice, str) else choice or "auto",
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs,
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
        "background": False,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    told = usage.as_dict()
    details: Any = told.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens") or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
