"""The serving engine and its OpenAI-style API."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_server.llm import LLM
    from forebay_server.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Import the public names when they are used: the API process shares this package and must not load torch."""
    if name == "LLM":
        from forebay_server.llm import LLM

        return LLM
    if name == "SamplingParams":
        from forebay_server.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
