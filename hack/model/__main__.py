"""Command line: `python -m hack.model --namespace NAMESPACE`."""

import argparse
import sys
from collections.abc import Sequence

from hack.cluster.paths import cache_root
from hack.kube import ToolError
from hack.model.gguf_file import ModelError, fetch
from hack.model.volume import CLAIM, provide, volume_name


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch the model and claim it in a namespace; 0 when done, 1 with the reason when not."""
    parser = argparse.ArgumentParser(
        prog="python -m hack.model",
        description="Put SmolLM2-135M-Instruct (98 MB, Apache-2.0) on a volume of the embedded cluster. Repeatable.",
        epilog="example: python -m hack.model --namespace demo\n"
        f"         then, in an InferenceService:  model: {{uri: pvc://{CLAIM}/SmolLM2-135M-Instruct.Q4_1.gguf}}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--namespace", required=True, help=f"where the claim `{CLAIM}` is made; must exist")
    namespace: str = parser.parse_args(argv).namespace
    try:
        file = fetch(cache_root() / "models")
        print(f"model: {file} ({file.stat().st_size / 1e6:.0f} MB)")
        provide(namespace, file.parent)
    except (ModelError, ToolError) as failed:
        print(f"model: {failed}", file=sys.stderr)
        return 1
    print(f"claim: {namespace}/{CLAIM}, bound to volume {volume_name(namespace)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
