"""`forebay crds`: print the custom resource definitions, or write them to a folder."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from forebay_operator.crd import documents

_EXAMPLES = """examples:
  forebay crds | kubectl apply --server-side -f -
  forebay crds --output crds
"""


def main(argv: Sequence[str]) -> int:
    """Run the subcommand; 0 when done, 2 for a bad command line, 1 when a file cannot be written."""
    parser = argparse.ArgumentParser(
        prog="forebay crds",
        description="Print the custom resource definitions as YAML.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="write one file a kind there instead")
    folder: Path | None = parser.parse_args(argv).output
    if folder is None:
        sys.stdout.write("---\n".join(documents().values()))
        return 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in documents().items():
            (folder / name).write_text(text, encoding="utf-8")
            sys.stdout.write(f"{folder / name}\n")
    except OSError as error:
        sys.stderr.write(f"forebay crds: cannot write to {folder}: {error.strerror}\n")
        return 1
    return 0
