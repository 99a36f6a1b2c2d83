"""Why a container waits or has ended, from what Kubernetes and the engine's termination message say. Pure."""

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

EXIT_REASONS = {
    2: "InvalidConfiguration",
    11: "ModelNotFound",
    12: "ModelNotAllowed",
    13: "WeightsDoNotFit",
    14: "KVCacheDoesNotFit",
    15: "DeviceLost",
    16: "CorruptModel",
    17: "EngineHung",
}
"""The exit codes of the contract between operator and engine."""

REFERENCE_REASONS = frozenset({"MissingClaim", "MissingSecret", "ModelNotFound", "ModelNotAllowed", "CorruptModel"})
"""Reasons that something the spec refers to is not there or cannot be used."""

_MISSING_CLAIM = re.compile(
    r'persistentvolumeclaim "([^"]+)" not found|could not find v1.PersistentVolumeClaim "(?:[^"/]+/)?([^"]+)"',
    re.IGNORECASE,
)
_MISSING_SECRET = re.compile(r'secret "([^"]+)" not found', re.IGNORECASE)
_MISSING_KEY = re.compile(r"references non-existent secret key: (\S+)")
_PULL_REASONS = frozenset({"ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName"})


@dataclass(frozen=True, slots=True)
class Failure:
    """One CamelCase word for programs and one line for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class LastEnd:
    """How a container last ended, other than well."""

    code: int
    at: datetime
    """To the second."""
    message: str


def missing_reference(message: str) -> Failure | None:
    """The claim or Secret that a scheduler's or kubelet's message says is not there."""
    if match := _MISSING_CLAIM.search(message):
        return Failure(
            "MissingClaim", f"PersistentVolumeClaim {match.group(1) or match.group(2)} does not exist in this namespace"
        )
    if match := _MISSING_SECRET.search(message):
        return Failure("MissingSecret", f"Secret {match.group(1)} does not exist in this namespace")
    if match := _MISSING_KEY.search(message):
        return Failure("MissingSecret", f"the Secret has no key {match.group(1)}")
    return None


def unschedulable(message: str, accelerator: str) -> Failure:
    """Why the scheduler finds no place for a pod; `accelerator` is the resource's name, empty for CPU."""
    if missing := missing_reference(message):
        return missing
    short = message.split(" preemption:")[0]
    if accelerator and f"Insufficient {accelerator}" in message:
        return Failure("WaitingForGPU", f"no node has the accelerators free: {short}")
    return Failure("Unschedulable", short)


def waiting(reason: str, message: str) -> Failure | None:
    """What keeps a container from starting; None when it is simply being created."""
    if missing := missing_reference(message):
        return missing
    if reason in _PULL_REASONS:
        return Failure("ImagePullFailed", message or reason)
    if reason in ("", "ContainerCreating", "PodInitializing", "CrashLoopBackOff"):
        return None
    return Failure(reason, message or reason)


def terminated(state: dict[str, Any]) -> Failure | None:
    """Why a container ended; None when it ended well.

    The engine's message is JSON `{reason, message, needBytes, haveBytes, suggestion}`; anything else is shown as it is.
    """
    code = int(state.get("exitCode", 0))
    if code == 0:
        return None
    if state.get("reason") == "OOMKilled":
        return Failure("OOMKilled", "the container used more memory than its limit; raise accelerator.memory")
    text = str(state.get("message", "")).strip()
    reason = EXIT_REASONS.get(code, "EngineFailed")
    return Failure(reason, _readable(text) or f"the container ended with exit code {code}")


def _readable(text: str) -> str:
    try:
        message = json.loads(text)
    except json.JSONDecodeError:
        return text.splitlines()[-1][:512] if text else ""
    if not isinstance(message, dict) or not message.get("message"):
        return text[:512]
    parts = [str(message["message"])]
    if message.get("needBytes") and message.get("haveBytes"):
        parts.append(f"needs {message['needBytes']} bytes, has {message['haveBytes']}")
    if message.get("suggestion"):
        parts.append(str(message["suggestion"]))
    return "; ".join(parts)[:512]
