"""What people and tools see: step lines, logs, the published file, the image archive, safe deletion."""

import hashlib
import io
import json
import socket
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from hack.cluster import down, image, mounts
from hack.cluster.__main__ import main, tail
from hack.cluster.errors import ClusterError
from hack.cluster.info import FILE, ClusterInfo
from hack.progress import Console


def test_each_step_is_one_line_with_its_result_and_time() -> None:
    out = io.StringIO()
    console = Console(out)
    with console.step("etcd") as step:
        step.progress("unseen: the half minute is not over")
        step.result = "ready"
    with pytest.raises(ClusterError), console.step("kubelet"):
        raise ClusterError("no")
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["etcd", "kubelet"]
    assert lines[0].split()[2:] == ["ready", "0.0", "s"]
    assert "failed" in lines[1]
    assert lines[0].index("ready") == lines[1].index("failed")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_on_a_terminal_and_not_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = Terminal()
    with Console(shown).step("etcd"):
        pass
    assert "\x1b[32mdone\x1b[0m" in shown.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    with Console(plain).step("etcd"):
        pass
    assert plain.getvalue().startswith("\r\x1b[K  etcd ...")
    assert "\x1b[32m" not in plain.getvalue()


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\nthree \xff\n")
    assert tail(log, 2) == ["two", "three \ufffd"]
    assert tail(tmp_path / "none", 2) == []


def test_an_unknown_component_has_no_log(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["logs", "nope"])
    assert ended.value.code == 2
    assert "kube-apiserver" in capsys.readouterr().err


def test_what_is_published_is_read_back(tmp_path: Path) -> None:
    info = ClusterInfo(**{field.name: f"the {field.name}" for field in fields(ClusterInfo)})
    info.save(tmp_path)
    assert ClusterInfo.load(tmp_path) == info


def test_reading_without_a_cluster_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="make cluster-up"):
        ClusterInfo.load(tmp_path)
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_text('{"cluster_id": "1"}', encoding="utf-8")
    with pytest.raises(ClusterError, match="another version"):
        ClusterInfo.load(tmp_path)


def test_an_image_archive_is_consistent(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"program")
    made = image.archive(program, "forebay.local/pause:v1")
    assert made == image.archive(program, "forebay.local/pause:v1")
    with tarfile.open(fileobj=io.BytesIO(made)) as tar:
        content = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    manifest = json.loads(content["manifest.json"])[0]
    config = json.loads(content[manifest["Config"]])
    assert manifest["RepoTags"] == ["forebay.local/pause:v1"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content['layer.tar']).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(content["layer.tar"])) as layer:
        assert [(member.name, member.mode) for member in layer] == [("pause", 0o755)]


def test_a_tree_with_a_mount_in_it_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "kubelet" / "volume" / "data"
    data.mkdir(parents=True)
    monkeypatch.setattr(mounts, "mount_points", lambda: [Path("/"), data.parent])
    with pytest.raises(ClusterError, match="still mounted"):
        mounts.remove_tree(tmp_path / "kubelet")
    assert data.exists()
    monkeypatch.setattr(mounts, "mount_points", lambda: [Path("/"), Path(f"{tmp_path}/kubelet-of-another")])
    mounts.remove_tree(tmp_path / "kubelet")
    assert not data.exists()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A socket's path has at most 107 characters; pytest's own folders may be longer."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_only_a_socket_without_a_listener_is_removed(short_folder: Path) -> None:
    path = short_folder / "kubelet" / "device-plugins" / "kubelet.sock"
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        down._remove_dead_socket(path)
        assert path.exists()
    down._remove_dead_socket(path)
    assert not path.parent.parent.exists()
    down._remove_dead_socket(path)  # nothing there is fine
