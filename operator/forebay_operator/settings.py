"""The operator's settings: read once from the environment, frozen."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast


class SettingsError(ValueError):
    """An environment variable is missing or impossible; the message names it."""


PullPolicy = Literal["Always", "IfNotPresent", "Never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Everything that an installation may choose. Times in seconds."""

    engine_image: str
    """Image of engine pods, unless the spec names another (FOREBAY_ENGINE_IMAGE)."""
    operator_image: str
    """Image of inspect pods: the operator's own (FOREBAY_OPERATOR_IMAGE)."""
    image_pull_policy: PullPolicy = "IfNotPresent"
    """Of both (FOREBAY_IMAGE_PULL_POLICY)."""
    namespaces: tuple[str, ...] = ()
    """Where to look for services; empty: everywhere (FOREBAY_WATCH_NAMESPACES, with commas)."""
    health_port: int = 8080
    """Port of /healthz and /metrics; 0: none (FOREBAY_HEALTH_PORT)."""
    webhook_port: int = 0
    """Port of the admission webhook; 0: none (FOREBAY_WEBHOOK_PORT)."""
    webhook_certificates: Path = Path("/etc/forebay/webhook")
    """Folder with its tls.crt and tls.key (FOREBAY_WEBHOOK_CERTIFICATES)."""
    resync_seconds: int = 300
    """How often everything is listed and reconciled anew (FOREBAY_RESYNC_SECONDS)."""
    scrape_seconds: int = 10
    """How often pods are asked for progress and load, and scaling is decided (FOREBAY_SCRAPE_SECONDS)."""
    workers: int = 8
    """Services that are reconciled at the same time (FOREBAY_WORKERS)."""


def settings_from(environment: Mapping[str, str]) -> OperatorSettings:
    """The settings that an environment describes.

    Raises:
        SettingsError: a variable is missing, no number, or not one of its choices.
    """
    policy = environment.get("FOREBAY_IMAGE_PULL_POLICY", "IfNotPresent")
    if policy not in ("Always", "IfNotPresent", "Never"):
        raise SettingsError(f"FOREBAY_IMAGE_PULL_POLICY is {policy!r}; one of Always, IfNotPresent, Never")
    return OperatorSettings(
        engine_image=_required(environment, "FOREBAY_ENGINE_IMAGE"),
        operator_image=_required(environment, "FOREBAY_OPERATOR_IMAGE"),
        image_pull_policy=cast(PullPolicy, policy),
        namespaces=namespaces_from(environment.get("FOREBAY_WATCH_NAMESPACES", "")),
        health_port=_number(environment, "FOREBAY_HEALTH_PORT", default=8080, least=0),
        webhook_port=_number(environment, "FOREBAY_WEBHOOK_PORT", default=0, least=0),
        webhook_certificates=Path(
            environment.get("FOREBAY_WEBHOOK_CERTIFICATES", "").strip() or "/etc/forebay/webhook"
        ),
        resync_seconds=_number(environment, "FOREBAY_RESYNC_SECONDS", default=300, least=10),
        scrape_seconds=_number(environment, "FOREBAY_SCRAPE_SECONDS", default=10, least=1),
        workers=_number(environment, "FOREBAY_WORKERS", default=8, least=1),
    )


def namespaces_from(text: str) -> tuple[str, ...]:
    """Names from a list with commas, each once, in order."""
    return tuple(dict.fromkeys(name for name in (part.strip() for part in text.split(",")) if name))


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set; the Helm chart sets it, or set it to the name of an image")
    return value


def _number(environment: Mapping[str, str], name: str, *, default: int, least: int) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise SettingsError(f"{name} is {text!r}, not a whole number") from None
    if value < least:
        raise SettingsError(f"{name} is {value}; at least {least}")
    return value
