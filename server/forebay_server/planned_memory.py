"""What the operator's plan says of memory, from `--plan-file`. No torch: the API process reads it, too."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from forebay_server.errors import ExitCode, StartupError

_TERMS = (
    "totalBytes",
    "weightsBytes",
    "kvCacheBytes",
    "activationsBytes",
    "logitsBytes",
    "graphsBytes",
    "runtimeBytes",
    "communicationBytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMemory:
    """What a plan counts on, in bytes."""

    total: int
    """The accelerator's memory, or the budget of the pod."""
    weights: int
    kv_cache: int
    step: int
    """Activations and logits of the largest step."""
    reserved: int
    """What is neither: runtime, graphs, communication. The margin is not in it: it is there to be used."""

    @classmethod
    def of(cls, plan: Mapping[str, object] | None) -> Self | None:
        """The part of a plan that speaks of memory; None when there is none.

        Raises:
            StartupError: 2 when the part is there and not what the operator writes; names the key.
        """
        memory = plan.get("memory") if plan is not None else None
        if memory is None:
            return None
        if not isinstance(memory, Mapping):
            raise _bad("memory", f"must be an object, not {memory!r}")
        terms = {}
        for name in _TERMS:
            value = memory.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise _bad(f"memory.{name}", f"must be a number of bytes, not {value!r}")
            terms[name] = value
        return cls(
            total=terms["totalBytes"],
            weights=terms["weightsBytes"],
            kv_cache=terms["kvCacheBytes"],
            step=terms["activationsBytes"] + terms["logitsBytes"],
            reserved=terms["runtimeBytes"] + terms["graphsBytes"] + terms["communicationBytes"],
        )


def _bad(key: str, problem: str) -> StartupError:
    return StartupError(
        ExitCode.BAD_CONFIGURATION,
        "BadConfiguration",
        f"--plan-file: {key} {problem}",
        suggestion="use what the operator wrote, or what `forebay plan -o json` prints",
    )
