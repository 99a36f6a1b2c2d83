"""Pinned programs: versions come from go.mod, and a folder in the cache is always complete."""

import stat
from pathlib import Path

import pytest

from hack.cluster import builds
from hack.cluster.builds import FAMILIES, MODULES, Family
from hack.cluster.errors import ClusterError

FAMILY = Family("pause", "", {"pause": "."})


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_family_has_a_pinned_module_with_checksums(family: Family) -> None:
    go_mod = (MODULES / family.name / "go.mod").read_text(encoding="utf-8")
    assert builds.version_of(family, go_mod).startswith("v")
    assert (MODULES / family.name / "go.sum").exists() == bool(family.module)


@pytest.mark.parametrize(
    "go_mod",
    ["require example.org/a v1.34.4\n", "require (\n\texample.org/ab v2.0.0\n\texample.org/a v1.34.4\n)\n"],
)
def test_the_version_is_read_from_either_form_of_require(go_mod: str) -> None:
    assert builds.version_of(Family("a", "example.org/a", {}), go_mod) == "v1.34.4"


def test_a_module_that_is_not_required_is_an_error() -> None:
    with pytest.raises(ClusterError, match=r"example\.org/a"):
        builds.version_of(Family("a", "example.org/a", {}), "require example.org/other v1.0.0\n")


def test_kubernetes_reports_its_own_version() -> None:
    flags = builds.linker_flags(FAMILIES[0], "v1.34.4")
    assert "version.gitVersion=v1.34.4" in flags
    assert "version.gitMajor=1 " in flags
    assert flags.endswith("version.gitMinor=34")


def _fake_go(folder: Path, script: str) -> str:
    go = folder / "go"
    go.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    go.chmod(go.stat().st_mode | stat.S_IXUSR)
    return str(go)


def test_a_build_appears_complete_and_is_not_repeated(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    go = _fake_go(
        tmp_path, 'echo run >> "${0}.calls"; while [ "$1" != -o ]; do shift; done; echo program > "$2"; echo pkg'
    )
    seen: list[str] = []
    assert builds.build(FAMILY, programs, go, tmp_path / "log", seen.append)
    assert builds.is_built(FAMILY, programs)
    assert seen == ["1 packages compiled"]
    assert not builds.build(FAMILY, programs, go, tmp_path / "log", seen.append)
    assert (tmp_path / "go.calls").read_text(encoding="utf-8") == "run\n"


def test_a_failed_build_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    go = _fake_go(tmp_path, 'while [ "$1" != -o ]; do shift; done; echo half > "$2"; echo no such module; exit 1')
    with pytest.raises(ClusterError, match="no such module"):
        builds.build(FAMILY, programs, go, tmp_path / "log", lambda text: None)
    assert not builds.is_built(FAMILY, programs)
    assert [entry.name for entry in programs.iterdir()] == ["pause-v1.lock"]


def test_remains_of_a_killed_build_are_removed(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    (programs / "pause-v1.build-dead" / "programs").mkdir(parents=True)
    go = _fake_go(tmp_path, 'while [ "$1" != -o ]; do shift; done; echo program > "$2"')
    builds.build(FAMILY, programs, go, tmp_path / "log", lambda text: None)
    assert sorted(entry.name for entry in programs.iterdir()) == ["pause-v1", "pause-v1.lock"]
