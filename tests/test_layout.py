"""The layout keeps `operator/` from shadowing the standard library and every file small and explained."""

import ast
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ["operator", "server", "kernels"]
MAX_LINES = 500


def python_files() -> list[Path]:
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return [ROOT / name for name in files if (ROOT / name).exists()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_python_file_lies_directly_in_a_product_folder(folder: str) -> None:
    assert list((ROOT / folder).glob("*.py")) == []


def test_operator_is_still_the_standard_library() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.__file__)"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    assert Path(found).is_relative_to(sysconfig.get_path("stdlib"))


def test_files_are_small_enough_to_read() -> None:
    too_long = {
        str(f.relative_to(ROOT)): n for f in python_files() if (n := len(f.read_text().splitlines())) > MAX_LINES
    }
    assert too_long == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(f.relative_to(ROOT))
        for f in python_files()
        if (source := f.read_text()).strip() and ast.get_docstring(ast.parse(source)) is None and "tests" not in f.parts
    ]
    assert silent == []
