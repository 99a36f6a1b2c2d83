"""Put the product on the embedded cluster: the chart with the images that were built, and the demo's model."""

import json

from hack.kube import ROOT, STATE, kubectl, run

OPERATOR_NAMESPACE = "forebay-system"
RELEASE = "forebay"


def built_images() -> dict[str, str]:
    """The references of the `operator` and `server` images that `python -m hack.images all` pushed."""
    return dict(json.loads((STATE / "images.json").read_text()))


def install_operator(*settings: str) -> None:
    """`helm upgrade --install` the chart with our own images, and wait until the operator is available.

    Args:
        settings: further values, as `--set` takes them.
    """
    images = built_images()
    operator_repository, _, operator_tag = images["operator"].rpartition(":")
    run(
        "helm",
        "upgrade",
        "--install",
        RELEASE,
        str(ROOT / "helm" / "forebay"),
        "--namespace",
        OPERATOR_NAMESPACE,
        "--create-namespace",
        "--set",
        f"image.repository={operator_repository},image.tag={operator_tag},engine.image={images['server']}",
        *(option for setting in settings for option in ("--set", setting)),
        "--wait",
        "--timeout",
        "5m",
        timeout=330,
    )


def ensure_namespace(name: str) -> None:
    """Create a namespace that enforces the restricted Pod Security Standard, as a careful cluster does."""
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(namespace))
