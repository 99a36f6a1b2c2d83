"""What is known of a request once it is served: for the log line, the request log and the traces."""

from typing import Any, Protocol

from starlette.types import Scope

_RUN, _ANSWER = "forebay.run", "forebay.answer"


class Run(Protocol):
    """A request in the engine: choices being generated, or prompts being pooled."""

    def facts(self) -> dict[str, Any]:
        """Token counts, finish reasons, and times in seconds."""
        ...


def note_answer(scope: Scope, *, answer_id: str, model: str, stream: bool, tenant: str) -> None:
    """Remember what the answer is called."""
    scope[_ANSWER] = {"id": answer_id, "model": model, "stream": stream, "tenant": tenant or None}


def note_run(scope: Scope, run: Run) -> None:
    """Remember the run, once there is one."""
    scope[_RUN] = run


def facts_of(scope: Scope) -> dict[str, Any]:
    """Everything that is known; empty for requests that reach no model."""
    run: Run | None = scope.get(_RUN)
    return {**scope.get(_ANSWER, {}), **(run.facts() if run is not None else {})}
