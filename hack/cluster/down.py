"""Takes a cluster down so that nothing of it is left on the machine, whatever state it is in."""

import contextlib
import shutil
import socket
import subprocess
from pathlib import Path

from hack.cluster import cgroups, mounts, netns, packages, processes
from hack.cluster.components import NAMES
from hack.cluster.errors import ClusterError
from hack.cluster.paths import CNI_RESULTS, DEVICE_PLUGIN_SOCKET, KUBELET_LOG_LINKS, SHIM_SOCKETS, Paths
from hack.progress import Console

_KILL_TIMEOUT_SECONDS = 20.0
_TASKS = "containerd/io.containerd.runtime.v2.task/k8s.io"


def down(paths: Paths, console: Console, purge: bool) -> None:
    """Stop everything in order, then remove every trace but logs and images.

    Args:
        paths: the cluster's files and folders.
        console: where each step is reported.
        purge: remove logs and images too; what all checkouts share (programs, registry) stays.

    Raises:
        ClusterError: a process, mount or group resists.
    """
    with console.step("components") as step:
        stopped = stop_components(paths)
        step.result = f"{stopped} stopped" if stopped else "none was running"
    with console.step("leftovers") as step:
        sweep(paths)
        step.result = "removed"
    if purge:
        with console.step("images and logs") as step:
            mounts.remove_tree(paths.cluster)
            step.result = "removed"


def stop_components(paths: Paths) -> int:
    """Stop the components, last started first, and delete all containers while containerd can still do it.

    Returns:
        How many were running.
    """
    stopped = 0
    for name in reversed(NAMES):
        if name == "containerd" and processes.find(paths.run, name) is not None:
            # Pods end here, not one by one through the API: their objects go with etcd's data.
            cgroups.kill_all(f"{paths.cgroup}/{cgroups.PODS}", _KILL_TIMEOUT_SECONDS)
            delete_containers(paths.containerd_socket)
        stopped += processes.stop(paths.run, name)
    return stopped


def delete_containers(address: Path) -> int:
    """Delete every container that containerd knows, and with it the container's writable layer. Images stay.

    Returns:
        How many there were.

    Raises:
        ClusterError: containerd does not answer.
    """
    ctr = [packages.program("ctr"), "--address", str(address), "--namespace", "k8s.io"]
    listed = subprocess.run([*ctr, "containers", "ls", "--quiet"], capture_output=True, text=True)
    if listed.returncode != 0:
        raise ClusterError(f"containerd does not list its containers: {listed.stderr.strip()}")
    names = listed.stdout.split()
    if names:
        # One that resists is left to the kubelet's garbage collection.
        subprocess.run([*ctr, "containers", "rm", *names], capture_output=True)
    return len(names)


def sweep(paths: Paths) -> None:
    """Remove all that a stopped, crashed or half-started cluster has left, except logs and images.

    Raises:
        ClusterError: a process, mount or group resists.
    """
    cgroups.kill_all(paths.cgroup, _KILL_TIMEOUT_SECONDS)
    shim_sockets = _shim_sockets(paths)
    netns.remove_interface(paths)
    mounts.unmount_below([paths.run, paths.cluster])
    cgroups.remove(paths.cgroup)
    for shim_socket in shim_sockets:
        shim_socket.unlink(missing_ok=True)
    for link in KUBELET_LOG_LINKS.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # another cluster's pod, ended just now
            if link.readlink().is_relative_to(paths.pod_logs):
                link.unlink()
    for result in CNI_RESULTS.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            if str(paths.run) in result.read_text(encoding="utf-8"):  # the pod's network namespace lay there
                result.unlink()
    _remove_dead_socket(DEVICE_PLUGIN_SOCKET)
    for folder in (paths.run, paths.etcd, paths.kubelet, paths.pod_logs, paths.config, paths.pki):
        mounts.remove_tree(folder)
    if paths.published.exists():
        shutil.rmtree(paths.published)


def _shim_sockets(paths: Paths) -> list[Path]:
    """Return the sockets of killed shims; each container's folder names the one that it used."""
    sockets = []
    for file in (paths.run / _TASKS).glob("*/address"):
        address = Path(file.read_text(encoding="utf-8").strip().removeprefix("unix://"))
        if address.is_relative_to(SHIM_SOCKETS):
            sockets.append(address)
    return sockets


def _remove_dead_socket(path: Path) -> None:
    """Remove a socket that nobody listens on, and its folders when they are empty; another kubelet's is left alone."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except FileNotFoundError:
            return
        else:
            return
    with contextlib.suppress(OSError):  # not empty: somebody else's
        path.parent.rmdir()
        path.parent.parent.rmdir()
