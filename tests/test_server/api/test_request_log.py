"""The request log: one JSON line a request, with no word of what was said unless that was asked for."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.server_process import ServerProcess, wait_for

SECRET = "a very private prompt"


def lines(path: Path, number: int) -> list[Any]:
    """So many; the last one is written a moment after its answer."""
    wait_for(lambda: path.exists() and path.read_text().count("\n") == number, 5, f"{number} lines")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_ids_times_and_counts_and_no_text(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    server = start_server("--request-log", str(path), "--served-model-name", "tiny")
    whole = server.api("/v1/completions", {"prompt": SECRET, "n": 2, "max_tokens": 3}, {"X-Request-Id": "mine"})
    stream = {"messages": [{"role": "user", "content": SECRET}], "stream": True, "user": "me"}
    server.api("/v1/chat/completions", stream)
    server.api("/v1/embeddings", {"input": [SECRET]})
    server.api("/v1/completions", {"prompt": SECRET, "n": 0})
    server.api("/health")
    first, second, third, fourth = lines(path, 4)
    assert SECRET not in path.read_text()
    assert SECRET not in server.log
    assert first["request_id"] == "mine"
    assert first["id"] == whole.json["id"]
    assert (first["method"], first["path"], first["status"], first["model"]) == ("POST", "/v1/completions", 200, "tiny")
    assert (first["prompt_tokens"], first["completion_tokens"]) == (len(SECRET), 6)
    assert first["finish_reasons"] == ["length", "length"]
    assert 0 < first["first_token_seconds"] <= first["seconds"] < 30
    assert first["queue_seconds"] >= 0
    assert not first["stream"]
    assert (second["stream"], second["tenant"], second["finish_reasons"]) == (True, "me", ["stop"])
    assert (third["path"], third["prompt_tokens"]) == ("/v1/embeddings", len(SECRET))
    assert (fourth["status"], fourth["client_left"]) == (400, False)
    assert "id" not in fourth
    assert abs(time.time() - path.stat().st_mtime) < 60


def test_a_client_that_left_is_told_and_rotation_is_followed(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    server = start_server("--request-log", str(path), fake_step_seconds="0.05")
    server.api("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert len(lines(path, 1)) == 1
    path.rename(tmp_path / "old.jsonl")
    body = {"prompt": "ab", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"http://127.0.0.1:{server.port}/v1/completions", json=body) as response:
        next(response.iter_bytes())
    (line,) = lines(path, 1)
    assert line["client_left"]
    assert line["finish_reasons"] == ["abort"]
    assert len(lines(tmp_path / "old.jsonl", 1)) == 1


def test_text_only_when_asked_for(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    server = start_server("--request-log", str(path), "--request-log-body")
    server.api("/v1/completions", {"prompt": SECRET})
    (line,) = lines(path, 1)
    assert json.loads(line["body"])["prompt"] == SECRET
