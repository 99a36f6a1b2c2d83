"""Render the chart with the real helm, without a cluster."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from hack.cluster import builds
from hack.cluster.paths import cache_root
from hack.cluster.toolchain import go_program

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "forebay"
KUBERNETES = "1.34.0"

Manifest = dict[str, Any]


def helm_program() -> str:
    """The cluster's helm, one on PATH, or one built now from its pinned source: a test that needs it never skips."""
    linked = ROOT / ".cluster" / "bin" / "helm"
    found = str(linked) if linked.exists() else shutil.which("helm")
    if found is not None:
        return found
    family = next(family for family in builds.FAMILIES if family.name == "helm")
    programs = cache_root() / "bin"
    if not builds.is_built(family, programs):
        programs.mkdir(parents=True, exist_ok=True)
        log = programs / "helm-build.log"
        builds.build(family, programs, go_program(ROOT, log), log, lambda text: None)
    return str(builds.folder_of(family, programs) / "helm")


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm_program(), *arguments], capture_output=True, text=True, check=False, timeout=60)


def render_text(*settings: str, namespace: str = "forebay-system", api_versions: tuple[str, ...] = ()) -> str:
    """`helm template` with `--set` settings, for a cluster that has `api_versions`; fails the test when helm does."""
    options = [option for setting in settings for option in ("--set", setting)]
    options += [option for version in api_versions for option in ("--api-versions", version)]
    done = run_helm("template", "forebay", str(CHART), "-n", namespace, "--kube-version", KUBERNETES, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(*settings: str, namespace: str = "forebay-system", api_versions: tuple[str, ...] = ()) -> list[Manifest]:
    text = render_text(*settings, namespace=namespace, api_versions=api_versions)
    return [document for document in yaml.safe_load_all(text) if document]


def refusal(*settings: str) -> str:
    """What helm says against these settings; fails the test when it accepts them."""
    options = [option for setting in settings for option in ("--set", setting)]
    done = run_helm("template", "forebay", str(CHART), "--kube-version", KUBERNETES, *options)
    assert done.returncode != 0
    return done.stderr


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def only(manifests: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    found = [m for m in of_kind(manifests, kind) if name is None or m["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} {kind} {name or ''}"
    return found[0]
