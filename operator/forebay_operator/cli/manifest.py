"""Read an InferenceService and its AcceleratorProfiles from a YAML file, with the operator's own types."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from forebay_operator.api.inference_service import InferenceServiceSpec
from forebay_operator.catalogue import AcceleratorProfile
from forebay_operator.facts.model_facts import ModelFacts
from forebay_operator.planner.request import PlanRequest
from forebay_operator.planning import plan_request
from forebay_operator.profiles import find_profile, known_names


@dataclass(frozen=True, slots=True)
class Manifest:
    """One InferenceService with the accelerator that it names."""

    spec: InferenceServiceSpec
    accelerator: AcceleratorProfile

    @property
    def model_uri(self) -> str:
        """Where the model lies."""
        return self.spec.model.uri

    def request(self, facts: ModelFacts) -> PlanRequest:
        """The planner's question, as the operator would put it."""
        return plan_request(self.spec, facts, self.accelerator)


def read_manifest(path: Path, accelerator: str | None = None) -> Manifest:
    """Read the one InferenceService of a file.

    Args:
        path: a YAML file, or `-` for standard input.
        accelerator: for a service that names none; None: it must name one.

    Raises:
        ValueError: not readable, not YAML, none or several of them, or a field that is wrong; one line that names file
            and field.
    """
    objects = [item for item in _documents(path) if isinstance(item, Mapping)]
    services = [item for item in objects if item.get("kind") == "InferenceService"]
    if len(services) != 1:
        raise ValueError(f"{path}: has {len(services)} objects of kind InferenceService; exactly one is needed")
    profiles = {
        str(item.get("metadata", {}).get("name")): item for item in objects if item.get("kind") == "AcceleratorProfile"
    }
    try:
        spec = InferenceServiceSpec.model_validate(services[0].get("spec") or {})
        name = _accelerator(path, spec, accelerator)
        found = find_profile(name, profiles)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ValueError(
            f"{path}: spec.{field}: {first['msg'].removeprefix('Value error, ')}".replace("spec.:", "spec:")
        ) from None
    if found is None:
        known = ", ".join(known_names(profiles))
        raise ValueError(f"{path}: spec.accelerator.profile: {name!r} is not known; known: {known}")
    return Manifest(spec, found.accelerator)


def _accelerator(path: Path, spec: InferenceServiceSpec, given: str | None) -> str:
    if spec.accelerator is None and given is None:
        raise ValueError(f"{path}: spec.accelerator: is missing, so the cluster's nodes decide; pass --accelerator")
    if spec.accelerator is not None and given is not None:
        raise ValueError(f"{path}: spec.accelerator says {spec.accelerator.profile}; leave --accelerator out")
    return spec.accelerator.profile if spec.accelerator else str(given)


def _documents(path: Path) -> list[Any]:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        return list(yaml.safe_load_all(text))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not text") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
