"""Tell why the server ends: one line on stderr for people, JSON in the termination log for the operator."""

import json
import os
import sys
from pathlib import Path

from forebay_server.errors import StartupError

LOG_PATH_VARIABLE = "FOREBAY_TERMINATION_LOG"
_DEFAULT_LOG_PATH = "/dev/termination-log"
_MAX_MESSAGE_CHARACTERS = 2000
"""Kubernetes keeps 4096 bytes of the log."""


def report_failure(error: StartupError) -> None:
    """Write the line and the JSON; a log that cannot be written changes nothing."""
    suggestion = f" ({error.suggestion})" if error.suggestion else ""
    sys.stderr.write(f"forebay serve: error: {error.message}{suggestion} [{error.reason}, exit {error.exit_code}]\n")
    sys.stderr.flush()
    explicit = os.environ.get(LOG_PATH_VARIABLE)
    path = Path(explicit or _DEFAULT_LOG_PATH)
    if not explicit and not path.exists():  # only a pod has one; elsewhere /dev is no place for files
        return
    try:
        path.write_text(termination_message(error), encoding="utf-8")
    except OSError as trouble:
        sys.stderr.write(f"forebay serve: cannot write {path}: {trouble.strerror}\n")


def termination_message(error: StartupError) -> str:
    """The JSON that the operator reads; fields without a value are left out."""
    fields = {
        "reason": error.reason,
        "message": error.message[:_MAX_MESSAGE_CHARACTERS],
        "needBytes": error.need_bytes,
        "haveBytes": error.have_bytes,
        "suggestion": error.suggestion,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None})
