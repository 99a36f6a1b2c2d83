"""The built-in well-known models, read from `models.toml`: facts without a download."""

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from forebay_operator.facts.inspect_model import facts_of_config
from forebay_operator.facts.model_facts import ModelFacts

PREFIX = "hf://"

_LAST_TWO_PARTS = re.compile(r"^pvc://[^/]+/(?:.*/)?([^/]+/[^/]+)$")
"""Of a path: `org/name`, as a repository is often copied."""


def known_model_names() -> list[str]:
    """Every repository of the catalogue, in its order."""
    return list(_configs())


@cache
def known_model(name: str) -> ModelFacts | None:
    """Facts of a well-known model.

    Args:
        name: `org/name` or `hf://org/name`; upper and lower case are the same.

    Returns:
        The facts, or None when the catalogue does not have it.
    """
    wanted = name.removeprefix(PREFIX).lower()
    config = next((config for known, config in _configs().items() if known.lower() == wanted), None)
    return None if config is None else facts_of_config(config, f"catalogue entry {wanted}")


def published_name(uri: str) -> str | None:
    """The well-known model that a path on a claim is named like (`pvc://models/org/name`); None when there is none.

    What lies there may be something else: this is good for a first answer or a warning, never for a refusal.
    """
    match = _LAST_TWO_PARTS.match(uri)
    return match.group(1) if match and known_model(match.group(1)) else None


@cache
def _configs() -> dict[str, dict[str, Any]]:
    data = tomllib.loads(files(__package__).joinpath("models.toml").read_text(encoding="utf-8"))
    return {name: entry["config"] for entry in data["model"] for name in entry["names"]}
