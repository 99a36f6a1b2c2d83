"""The demo's model: a file that is checked once, and a volume that binds to one claim only."""

from pathlib import Path

import pytest

from hack.model import gguf_file
from hack.model.gguf_file import FILE_BYTES, FILE_NAME, ModelError, fetch
from hack.model.volume import manifests, must_be_replaced


def test_volume_and_claim_name_each_other() -> None:
    claim, volume = manifests("demo", Path("/models"))
    assert volume["spec"]["claimRef"] == {"namespace": "demo", "name": claim["metadata"]["name"]}
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert claim["spec"]["storageClassName"] == volume["spec"]["storageClassName"] == ""
    assert claim["metadata"]["namespace"] == "demo"
    assert volume["spec"]["hostPath"] == {"path": "/models", "type": "Directory"}


@pytest.mark.parametrize(
    ("phase", "path", "replaced"),
    [
        ("Bound", "/models", False),
        ("Available", "/models", False),
        ("Released", "/models", True),
        ("Bound", "/old", True),
    ],
)
def test_a_volume_that_can_never_bind_again_is_replaced(phase: str, path: str, replaced: bool) -> None:
    volume = {"status": {"phase": phase}, "spec": {"hostPath": {"path": path}}}
    assert must_be_replaced(volume, Path("/models")) is replaced


def test_a_file_of_the_right_size_is_kept_and_made_readable(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    with file.open("wb") as content:
        content.truncate(FILE_BYTES)  # takes no space
    file.chmod(0o600)
    tmp_path.chmod(0o700)
    assert fetch(tmp_path) == file
    assert file.stat().st_mode & 0o777 == 0o644
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_another_file_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF")
    monkeypatch.setattr(gguf_file, "_installed", lambda: wrong)
    with pytest.raises(ModelError, match="SHA-256"):
        fetch(tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []
