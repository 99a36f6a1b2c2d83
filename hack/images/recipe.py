"""What goes into an image, and the tag that its content gives it."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Image:
    """One image of the project.

    Attributes:
        key: its name in `.cluster/images.json`.
        name: repository in a registry.
        dockerfile: path below the checkout.
    """

    key: str
    name: str
    dockerfile: str


IMAGES = (
    Image("operator", "forebay-operator", "operator/Dockerfile"),
    Image("server", "forebay-server", "server/Dockerfile"),
)


def context_files(checkout: Path) -> list[Path]:
    """Return the files that a build may read, sorted, relative to the checkout: both Dockerfiles and their context.

    The context is what `.dockerignore` lets in. Only the form that ours has is read: everything is left out except what
    a line beginning with `!` names.
    """
    files = {checkout / ".dockerignore", *(checkout / image.dockerfile for image in IMAGES)}
    for line in (checkout / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line.startswith("!"):
            root = checkout / line[1:].strip()
            files.update([root] if root.is_file() else (path for path in root.rglob("*") if path.is_file()))
    return sorted(path.relative_to(checkout) for path in files if "__pycache__" not in path.parts)


def copy_context(checkout: Path, folder: Path) -> None:
    """Copy what a build may read, so that an edit during the build does not get under the tag of the state before."""
    for path in context_files(checkout):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(checkout / path, folder / path)


def content_tag(context: Path, image: Image, base: str) -> str:
    """Return a tag that changes when the image would, and only then.

    Args:
        context: a folder that `copy_context` filled, or a checkout.
        image: which image.
        base: reference of the base image; its tag says how the base was made.
    """
    others = {Path(other.dockerfile) for other in IMAGES if other != image}
    digest = hashlib.sha256(base.encode())
    for path in context_files(context):
        if path not in others:
            content = (context / path).read_bytes()
            digest.update(f"\0{path.as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return (
        f"src-{digest.hexdigest()[:16]}"  # hexadecimal digits alone may read as a number, in YAML and in `helm --set`
    )
