"""Print what extras of pyproject.toml require, so that an image can install it without the project's code.

The Dockerfiles run it, so it needs nothing but the standard library. Its output changes only with the
requirements themselves: an edit elsewhere in pyproject.toml leaves the images' dependency layers alone.
"""

import argparse
import sys
import tomllib
from pathlib import Path


def requirements_of(pyproject: str, *extras: str) -> list[str]:
    """Return the project's requirements and those of its extras, or the build backend's when there are none.

    Args:
        pyproject: the text of a pyproject.toml.
        extras: keys of `project.optional-dependencies`; none for `build-system.requires`.

    Raises:
        KeyError: there is no such extra.
    """
    document = tomllib.loads(pyproject)
    if not extras:
        return sorted(document["build-system"]["requires"])
    project = document["project"]
    by_extra = project["optional-dependencies"]
    return sorted([*project.get("dependencies", []), *(line for extra in extras for line in by_extra[extra])])


def main() -> int:
    """Parse the command line and print one requirement a line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="example: requirements.py pyproject.toml --extra server"
    )
    parser.add_argument("pyproject", type=Path, help="path of pyproject.toml")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--extra", action="append", default=[], help="which extra; may be repeated")
    group.add_argument("--build-system", action="store_true", help="what the build backend requires instead")
    arguments = parser.parse_args()
    try:
        lines = requirements_of(arguments.pyproject.read_text(encoding="utf-8"), *arguments.extra)
    except KeyError as missing:
        parser.exit(2, f"requirements.py: {arguments.pyproject} has no extra {missing}\n")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
