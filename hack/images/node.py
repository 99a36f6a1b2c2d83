"""Have the cluster's node pull an image before a pod of ours needs it, so that the wait is seen for what it is."""

import shutil
import subprocess

from hack.cluster.info import ClusterInfo
from hack.cluster.packages import SEARCH_PATH
from hack.images.errors import ImageError
from hack.kube import apply, get, kubectl, wait_until

NAMESPACE = "kube-system"
PULL_SECONDS = 1800.0
FAILED_PULLS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerError", "RunContainerError")


def node_has(cluster: ClusterInfo, reference: str) -> bool:
    """Whether the node's containerd already holds an image."""
    program = shutil.which("ctr", path=SEARCH_PATH)
    if program is None:
        raise ImageError("ctr is not installed (Debian package containerd)")
    command = [program, "--address", cluster.containerd_socket, "--namespace", "k8s.io", "images", "ls", "-q"]
    done = subprocess.run([*command, f"name=={reference}"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and reference in done.stdout.split()


def pull_on_node(name: str, reference: str) -> None:
    """Run the image's `--version` once in a pod: the kubelet pulls it, and we learn that it starts.

    Args:
        name: of the pod.
        reference: as pods write it.

    Raises:
        ImageError: the image cannot be pulled or does not start.
        hack.kube.ToolError: kubectl failed, or the pull took longer than half an hour.
    """
    container = {
        "name": "pull",
        "image": reference,
        "imagePullPolicy": "IfNotPresent",
        "args": ["--version"],
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True},
        },
    }
    kubectl("delete", "pod", name, "-n", NAMESPACE, "--ignore-not-found")
    wait_until("the default ServiceAccount", lambda: get("serviceaccount", "default", NAMESPACE), 60)
    apply(pod, NAMESPACE)
    try:
        wait_until(f"the node to pull {reference}", lambda: _ended(name, reference), PULL_SECONDS)
    finally:
        kubectl("delete", "pod", name, "-n", NAMESPACE, "--ignore-not-found", "--wait=false")


def _ended(name: str, reference: str) -> bool:
    status = (get("pod", name, NAMESPACE) or {}).get("status", {})
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") in FAILED_PULLS:
            raise ImageError(f"{reference}: {waiting['reason']}: {waiting.get('message', '')}")
    if status.get("phase") == "Failed":
        raise ImageError(f"{reference} was pulled, but `forebay --version` fails in it: {status}")
    return bool(status.get("phase") == "Succeeded")
