"""An image's tag follows its content: what is not in the image does not change it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hack.images.recipe import IMAGES, Image, content_tag, context_files, copy_context

ROOT = Path(__file__).parents[2]
OPERATOR, SERVER = IMAGES


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    files = {
        ".dockerignore": "# comment\n*\n!pyproject.toml\n!server/forebay_server/\n**/__pycache__\n",
        "pyproject.toml": "x",
        "operator/Dockerfile": "FROM a",
        "server/Dockerfile": "FROM b",
        "server/forebay_server/engine/step.py": "pass",
        "server/forebay_server/__pycache__/step.pyc": "",
        "server/benchmarks/bench.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_context_is_what_dockerignore_lets_in(checkout: Path) -> None:
    assert [str(path) for path in context_files(checkout)] == [
        ".dockerignore",
        "operator/Dockerfile",
        "pyproject.toml",
        "server/Dockerfile",
        "server/forebay_server/engine/step.py",
    ]


def edit(name: str, text: str = "changed") -> Callable[[Path], None]:
    def apply(checkout: Path) -> None:
        (checkout / name).write_text(text, encoding="utf-8")

    return apply


def rename(checkout: Path) -> None:
    (checkout / "server/forebay_server/engine/step.py").rename(checkout / "server/forebay_server/engine/other.py")


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("change", [edit("pyproject.toml"), edit("server/forebay_server/engine/step.py"), rename])
def test_a_change_of_the_context_changes_both_tags(
    checkout: Path, image: Image, change: Callable[[Path], None]
) -> None:
    before = content_tag(checkout, image, "base:1")
    change(checkout)
    assert content_tag(checkout, image, "base:1") != before


@pytest.mark.parametrize("change", [edit("server/benchmarks/bench.py"), edit("README.md"), edit("operator/Dockerfile")])
def test_a_change_elsewhere_leaves_the_servers_tag(checkout: Path, change: Callable[[Path], None]) -> None:
    before = content_tag(checkout, SERVER, "base:1")
    change(checkout)
    assert content_tag(checkout, SERVER, "base:1") == before


def test_a_tag_depends_on_the_dockerfile_and_the_base_and_never_reads_as_a_number(checkout: Path) -> None:
    tags = {content_tag(checkout, OPERATOR, "base:1"), content_tag(checkout, OPERATOR, "base:2")}
    edit("operator/Dockerfile")(checkout)
    tags.add(content_tag(checkout, OPERATOR, "base:1"))
    assert len(tags) == 3
    assert all(tag.startswith("src-") for tag in tags)


def test_a_copy_has_the_tag_of_its_original(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copy")
    copy_context(checkout, copy)
    assert content_tag(copy, SERVER, "base:1") == content_tag(checkout, SERVER, "base:1")
    assert not (copy / "server/benchmarks").exists()


def test_the_projects_context_holds_what_the_wheel_is_made_of() -> None:
    names = {path.as_posix() for path in context_files(ROOT)}
    assert {"LICENSE", "README.md", "constraints.txt", "pyproject.toml", "hack/images/requirements.py"} <= names
    packages = ("operator/forebay_operator", "server/forebay_cli", "server/forebay_server", "kernels/forebay_kernels")
    for package in packages:
        assert {f"{package}/__init__.py", f"{package}/py.typed"} <= names
    assert not [name for name in names if name.startswith(("tests/", ".venv", ".git/", "hack/cluster"))]


@pytest.mark.parametrize("image", IMAGES)
def test_images_run_as_a_numeric_user_and_nothing_of_pip_stays_in_a_layer(image: Image) -> None:
    text = (ROOT / image.dockerfile).read_text(encoding="utf-8")
    final = text.rpartition("FROM ${BASE_IMAGE}\n")[2]
    assert "\nUSER 65532:65532\n" in final
    assert '\nENTRYPOINT ["forebay"]\n' in final
    assert "\nCOPY . " not in final
    assert text.count("--mount=type=cache,target=/root/.cache/pip") == text.count("bin/pip install") + final.count(
        "bin/pip --python"
    )
