"""Subject: the model and the accelerators that a calculation is about, looked up by the names a person gives."""

from dataclasses import dataclass
from pathlib import Path

from forebay_operator.catalogue import AcceleratorProfile
from forebay_operator.catalogue.accelerators import accelerators
from forebay_operator.catalogue.models import PREFIX, known_model, known_model_names
from forebay_operator.facts.inspect_model import inspect_model
from forebay_operator.facts.model_facts import ModelFacts
from forebay_operator.roi.inputs import InputError, Inputs
from forebay_operator.roi.variant import Variant, variants

DEFAULT_MODEL = "meta-llama/Llama-3.1-8B-Instruct"
DEFAULT_ACCELERATOR = "h100-80gb"
USUAL_MODEL_LEN = 8192
"""Memory is planned for prompts and answers of this length at least, so that the page's sliders have room."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, by the name that reports show, and how long its requests may be."""

    name: str
    facts: ModelFacts
    model_len: int
    """Longest prompt and answer together that memory is planned for, in tokens."""

    def on(self, accelerator: AcceleratorProfile) -> tuple[Variant, ...]:
        """What the planner says of it there; empty when nothing fits."""
        return variants(self.facts, accelerator, self.model_len)


def subject(model: str, inputs: Inputs) -> Subject:
    """Look a model up, in the catalogue or as a path.

    Raises:
        InputError: neither, or the requests are longer than the model's context.
        FactsError: the path is there, but not a model that is known.
    """
    facts = _facts(model)
    if inputs.sequence_tokens > facts.max_positions:
        raise InputError(
            "--prompt-tokens",
            f"{inputs.prompt_tokens:,} and {inputs.output_tokens:,} output tokens are more than the "
            f"{facts.max_positions:,} positions of {model}",
        )
    wanted = max(USUAL_MODEL_LEN, inputs.sequence_tokens)
    name = model.removeprefix(PREFIX).rstrip("/").rpartition("/")[2] or model
    return Subject(name, facts, min(facts.max_positions, wanted))


def accelerator(name: str) -> AcceleratorProfile:
    """A profile of the catalogue.

    Raises:
        InputError: there is none, or it is not a GPU.
    """
    profile = gpus().get(name)
    if profile is None:
        raise InputError("--accelerator", f"{name!r} is not a GPU of the catalogue; it has: {', '.join(gpus())}")
    return profile


def gpus() -> dict[str, AcceleratorProfile]:
    """Every accelerator that is counted in GPUs, in the catalogue's order."""
    return {name: profile for name, profile in accelerators().items() if profile.device != "cpu"}


def usual_price(profile: AcceleratorProfile) -> float:
    """US dollars for a GPU and hour: the middle of the catalogue's range, which is marketplace to cloud on demand."""
    return round(sum(profile.price_cents_per_hour) / 2) / 100


def _facts(model: str) -> ModelFacts:
    path = Path(model.removeprefix("file://"))
    if path.exists():
        return inspect_model(path)
    facts = known_model(model)
    if facts is None:
        raise InputError(
            "--model",
            f"{model!r} is neither a path on this machine nor one of the {len(known_model_names())} models of the "
            "catalogue",
        )
    return facts
