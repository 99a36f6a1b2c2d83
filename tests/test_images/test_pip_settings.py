"""A build uses the machine's own package index, by a file that is not part of the image."""

import configparser
from pathlib import Path

import pytest

from hack.images.pip_settings import (
    CACHE_IN_BUILD,
    CERTIFICATE_IN_BUILD,
    LINKS_IN_BUILD,
    parse_pip_config,
    settings_for_build,
)
from hack.images.pipeline import secrets


def written(configuration: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    parser.read_string(configuration)
    return dict(parser["global"])


def test_the_setting_that_pip_itself_would_use_counts() -> None:
    listing = "\n".join(
        [
            ":env:.default-timeout='180'",
            "global.default-timeout='9'",
            "global.index-url='https://global.example'",
            "install.index-url='https://install.example'",
            "download.index-url='https://other-command.example'",
        ]
    )
    assert parse_pip_config(listing) == {"default-timeout": "180", "index-url": "https://install.example"}


def test_where_packages_come_from_is_carried_and_what_they_become_is_not() -> None:
    given = {"index-url": "https://u:p@example/simple", "timeout": "5", "target": "/tmp/x", "no-cache-dir": "true"}
    settings = settings_for_build(given, {})
    carried = written(settings.configuration)
    assert carried["index-url"] == "https://u:p@example/simple"
    assert carried["timeout"] == "5"
    assert carried["cache-dir"] == CACHE_IN_BUILD
    assert not {"target", "no-cache-dir", "cert"} & set(carried)


def test_folders_of_wheels_are_mounted_and_missing_or_empty_ones_left_out(tmp_path: Path) -> None:
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "a.whl").touch()
    settings = settings_for_build({"find-links": f"/does/not/exist {empty} {full} https://example/wheels"}, {})
    mounted = f"{LINKS_IN_BUILD}/0"
    assert settings.folders == {full: mounted}
    assert set(written(settings.configuration)["find-links"].split()) == {mounted, "https://example/wheels"}
    assert "find-links" not in written(settings_for_build({"find-links": str(empty)}, {}).configuration)


@pytest.mark.parametrize("source", ["pip", "environment"])
def test_a_certificate_authority_is_mounted_under_a_fixed_name(tmp_path: Path, source: str) -> None:
    bundle = tmp_path / "bundle.crt"
    bundle.write_text("PEM")
    configured = {"cert": str(bundle)} if source == "pip" else {}
    environment = {"REQUESTS_CA_BUNDLE": str(bundle)} if source == "environment" else {}
    settings = settings_for_build(configured, environment)
    assert settings.certificate == bundle
    assert written(settings.configuration)["cert"] == CERTIFICATE_IN_BUILD
    options = secrets(settings, tmp_path)
    assert options == [f"--secret=id=pip.conf,src={tmp_path}/pip.conf", f"--secret=id=ca.pem,src={bundle}"]
    assert (tmp_path / "pip.conf").read_text() == settings.configuration
