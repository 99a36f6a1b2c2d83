"""Processes: found only while they live, told from a later one with the same id, and stopped even when they resist."""

import dataclasses
import json
import sys
import time
from pathlib import Path

import pytest

from hack.cluster import processes
from hack.cluster.errors import ComponentError
from hack.cluster.health import CommandCheck
from hack.cluster.processes import Component

ALWAYS = CommandCheck(("true",))
NEVER = CommandCheck(("false",))


def _python(code: str, check: CommandCheck = ALWAYS, timeout_seconds: float = 10.0) -> Component:
    return Component("sleeper", (sys.executable, "-c", code), check, timeout_seconds=timeout_seconds)


SLEEP = "import time; print('started', flush=True); time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


def _wait_for(log: Path, word: str) -> None:
    deadline = time.monotonic() + 20
    while word not in (log.read_text(encoding="utf-8") if log.exists() else ""):
        assert time.monotonic() < deadline, f"{word} never appeared"
        time.sleep(0.02)


@pytest.mark.parametrize(("code", "word"), [(SLEEP, "started"), (DEAF, "deaf")], ids=["polite", "deaf to SIGTERM"])
def test_a_started_process_is_found_until_it_is_stopped(tmp_path: Path, code: str, word: str) -> None:
    log = tmp_path / "log"
    record = processes.start(_python(code), tmp_path, log, (), ())
    _wait_for(log, word)
    assert processes.find(tmp_path, "sleeper") == record
    assert processes.stop(tmp_path, "sleeper", timeout_seconds=0.5)
    assert processes.find(tmp_path, "sleeper") is None
    assert not processes.stop(tmp_path, "sleeper")


def test_a_later_process_with_the_same_id_is_not_ours(tmp_path: Path) -> None:
    log = tmp_path / "log"
    record = processes.start(_python(SLEEP), tmp_path, log, (), ())
    older = dataclasses.replace(record, start_ticks=record.start_ticks - 1)
    file = tmp_path / "sleeper.json"
    file.write_text(json.dumps(dataclasses.asdict(older)), encoding="utf-8")
    assert processes.find(tmp_path, "sleeper") is None
    assert not processes.stop(tmp_path, "sleeper")
    file.write_text(json.dumps(dataclasses.asdict(record)), encoding="utf-8")
    assert processes.stop(tmp_path, "sleeper")  # it was not harmed before


def test_a_process_joins_its_groups_before_it_becomes_the_program(tmp_path: Path) -> None:
    log, group = tmp_path / "log", tmp_path / "cgroup.procs"
    record = processes.start(_python("import os; print('pid', os.getpid())"), tmp_path, log, (), (group,))
    _wait_for(log, f"pid {record.pid}")
    assert group.read_text(encoding="utf-8") == f"{record.pid}\n"


def test_one_that_ends_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    component = _python("raise SystemExit('bad flag')", NEVER)
    record = processes.start(component, tmp_path, log, (), ())
    with pytest.raises(ComponentError, match="ended right after its start") as failure:
        processes.wait_until_healthy(component, record, log)
    assert failure.value.log == log
    assert "bad flag" in log.read_text(encoding="utf-8")


def test_one_that_never_gets_healthy_is_reported_when_its_time_is_over(tmp_path: Path) -> None:
    component = _python(SLEEP, NEVER, timeout_seconds=0.3)
    record = processes.start(component, tmp_path, tmp_path / "log", (), ())
    with pytest.raises(ComponentError, match="not ready after"):
        processes.wait_until_healthy(component, record, tmp_path / "log")
    processes.stop(tmp_path, "sleeper")


def test_a_changed_configuration_file_changes_the_fingerprint(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("a", encoding="utf-8")
    component = dataclasses.replace(_python(SLEEP), files=(file,))
    before = component.fingerprint()
    assert component.fingerprint() == before
    file.write_text("b", encoding="utf-8")
    assert component.fingerprint() != before
