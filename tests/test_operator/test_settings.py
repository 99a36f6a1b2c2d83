"""Settings come from the environment alone and are checked at start."""

import pytest

from forebay_operator.cli.run import main
from forebay_operator.kinds import WATCHED
from forebay_operator.rights import RIGHTS
from forebay_operator.settings import SettingsError, settings_from

IMAGES = {"FOREBAY_ENGINE_IMAGE": "engine:1", "FOREBAY_OPERATOR_IMAGE": "operator:1"}


def test_the_smallest_environment() -> None:
    settings = settings_from(IMAGES)
    assert (settings.engine_image, settings.namespaces, settings.resync_seconds) == ("engine:1", (), 300)


def test_namespaces_are_a_list_with_commas() -> None:
    settings = settings_from({**IMAGES, "FOREBAY_WATCH_NAMESPACES": " a, b,,a "})
    assert settings.namespaces == ("a", "b")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"FOREBAY_ENGINE_IMAGE": " "}, "FOREBAY_ENGINE_IMAGE is not set"),
        ({"FOREBAY_IMAGE_PULL_POLICY": "Sometimes"}, "one of Always, IfNotPresent, Never"),
        ({"FOREBAY_RESYNC_SECONDS": "soon"}, "FOREBAY_RESYNC_SECONDS is 'soon', not a whole number"),
        ({"FOREBAY_WORKERS": "0"}, "FOREBAY_WORKERS is 0; at least 1"),
    ],
)
def test_what_is_impossible_is_named(changes: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings_from({**IMAGES, **changes})


def test_without_images_the_command_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FOREBAY_ENGINE_IMAGE", raising=False)
    assert main([]) == 2
    assert "FOREBAY_ENGINE_IMAGE" in capsys.readouterr().err


def test_every_watched_kind_has_its_rights() -> None:
    granted = {(right.group, right.resource): set(right.verbs) for right in RIGHTS}
    for kind in WATCHED:
        assert {"list", "watch"} <= granted[kind.group, kind.plural]


def test_no_right_is_a_wildcard_and_none_reads_secrets() -> None:
    for right in RIGHTS:
        assert "*" not in (right.group, right.resource, *right.verbs)
        assert right.resource not in ("secrets", "persistentvolumeclaims", "clusterrolebindings")
        assert right.resource != "nodes" or (set(right.verbs) == {"list", "watch"} and not right.required)
