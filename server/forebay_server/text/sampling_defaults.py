"""How a model's makers want it sampled when a request does not say: what generation_config.json has."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """OpenAI's defaults, where the model has no others. Ranges as in `SamplingParams`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def sampling_defaults(settings: Mapping[str, Any], source: Path) -> SamplingDefaults:
    """The defaults in a generation_config.json.

    A value that no request could have is left out with a warning, rather than keep the model from being served.

    Args:
        settings: the file's content.
        source: the file, for the warning.
    """
    found = SamplingDefaults(
        temperature=_number(settings, "temperature", 1.0, 0, 2, source),
        top_p=_number(settings, "top_p", 1.0, math.ulp(0.0), 1, source),
        top_k=int(_number(settings, "top_k", 0, -1, 2**31, source)),
        min_p=_number(settings, "min_p", 0.0, 0, 1, source),
        repetition_penalty=_number(settings, "repetition_penalty", 1.0, math.ulp(0.0), 2, source),
    )
    if found != SamplingDefaults():
        _logger.info("requests that do not say how to sample get %s's: %s", source.name, found)
    return found


def _number(
    settings: Mapping[str, Any], name: str, default: float, lowest: float, highest: float, source: Path
) -> float:
    value = settings.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        _logger.warning("%s: %s is %r, which no request could ask for; %g is used", source, name, value, default)
        return default
    return value
