"""Command line: `python -m hack.images build|push|all|clean`."""

import argparse
import sys
from collections.abc import Sequence

from hack.cluster.errors import ClusterError
from hack.cluster.info import ClusterInfo
from hack.images.errors import ImageError
from hack.images.pipeline import Pipeline, save_references
from hack.images.recipe import IMAGES, Image
from hack.kube import ROOT, ToolError
from hack.progress import heading

COMMANDS = {
    "build": "build both images",
    "push": "build what is missing and push it to the embedded cluster's registry",
    "all": "push, pull onto the node, and write the references to .cluster/images.json",
    "clean": "remove the build cache that all checkouts share (the next build takes minutes)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when done, 1 with the reason when not, 2 for a bad command line."""
    parser = argparse.ArgumentParser(
        prog="python -m hack.images",
        description="Build the operator's and the server's image without a registry, for the embedded cluster.",
        epilog="commands:\n"
        + "".join(f"  {name:<7}{text}\n" for name, text in COMMANDS.items())
        + "\nexamples:\n  python -m hack.images build --only operator\n  python -m hack.images all",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    parser.add_argument("--only", choices=[image.key for image in IMAGES], help="just one of the images")
    arguments = parser.parse_args(argv)
    images = [image for image in IMAGES if arguments.only in (None, image.key)]
    try:
        with Pipeline.of_checkout(ROOT) as pipeline:
            if arguments.command == "clean":
                pipeline.clean()
            else:
                run(pipeline, arguments.command, images)
    except (ImageError, ClusterError, ToolError) as failed:
        print(f"images: {failed}", file=sys.stderr)
        return 1
    return 0


def run(pipeline: Pipeline, command: str, images: list[Image]) -> None:
    """Build, push or do all for these images, and print their references."""
    heading("images")
    references: dict[str, str] = {}
    for image in images:
        if command == "build":
            references[image.key] = pipeline.build(image)
            continue
        cluster = ClusterInfo.load(ROOT)
        references[image.key] = pipeline.push(image, cluster)
        if command == "all":
            pipeline.pull(image, cluster)
    for key, reference in references.items():
        print(f"  {key:<9} {reference}")
    if command == "all" and len(images) == len(IMAGES):
        save_references(ROOT, references)


if __name__ == "__main__":
    sys.exit(main())
