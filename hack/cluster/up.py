"""Brings a cluster up, step by step; what already works is left alone, so it may be run at any time."""

import os
import subprocess
from pathlib import Path

from hack.cluster import addons, builds, cgroups, configs, image, netns, packages, pki, processes, provision
from hack.cluster.components import NAMES, components
from hack.cluster.configs import Settings
from hack.cluster.down import delete_containers, sweep
from hack.cluster.errors import ClusterError
from hack.cluster.info import ClusterInfo
from hack.cluster.network import Network
from hack.cluster.paths import Paths
from hack.cluster.processes import Component
from hack.progress import Console

_KUBECONFIG_USERS = ("admin", "kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns")
_RECOVERY_SECONDS = 5.0  # one that has just lost the API server, restarted above, finds it again in this time
_NODE_TIMEOUT = "--timeout=90s"


def check_machine(paths: Paths) -> None:
    """Refuse a machine that cannot run a cluster, before anything is changed.

    Raises:
        ClusterError: naming what is wrong and what to do.
    """
    if os.geteuid() != 0:
        raise ClusterError("must run as root: namespaces, cgroups and mounts are needed; use sudo")
    paths.cluster.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["stat", "--file-system", "--format=%T", paths.cluster], capture_output=True, text=True)
    if done.stdout.strip() in ("overlayfs", "tmpfs"):
        raise ClusterError(
            f"{paths.cache} lies on {done.stdout.strip()}, where images cannot be unpacked; "
            "set XDG_CACHE_HOME to a folder on a disk (in a container: a volume)"
        )


def up(paths: Paths, console: Console) -> bool:
    """Bring the cluster up.

    Args:
        paths: its files and folders.
        console: where each step is reported.

    Returns:
        True when anything had to be started.

    Raises:
        ClusterError: a step failed; what was started keeps running, for a look at it.
    """
    paths.logs.mkdir(parents=True, exist_ok=True)
    programs = provision.provision(paths, console)
    with console.step("network") as step:
        network = netns.existing_network(paths)
        is_fresh = network is None
        if network is None:
            network = _fresh_network(paths)
        step.result = str(network.node_address)
    settings = Settings(paths, network, provision.cni_folder())
    with console.step("certificates") as step:
        step.result = "created" if pki.create(paths.pki, network, configs.NODE_NAME) else "present"
    _write_configuration(settings)
    groups = cgroups.create(paths.cgroup)
    is_changed = False
    for component in components(settings, programs):
        with console.step(component.name) as step:
            is_started = _ensure_running(component, paths, groups)
            if component.name == "containerd":
                if is_fresh and delete_containers(paths.containerd_socket):
                    processes.stop(paths.run, component.name)  # it remembers what it saw at its start
                    _ensure_running(component, paths, groups)
                _import_pause_image(paths, programs)
            if component.name == "kube-apiserver" and is_started:
                _apply_addons(settings, programs)
            step.result = "ready" if is_started else "running"
            is_changed |= is_started
    with console.step("node") as step:
        _wait_for_node(paths, programs)
        step.result = "ready"
    _publish(settings, programs)
    return is_changed


def _fresh_network(paths: Paths) -> Network:
    sweep(paths)
    for name in NAMES:
        (paths.logs / f"{name}.log").unlink(missing_ok=True)
    paths.run.mkdir(parents=True, mode=0o700)
    return netns.create(paths)


def _write_configuration(settings: Settings) -> None:
    files = configs.render(settings)
    for user in _KUBECONFIG_USERS:
        files[f"{user}.kubeconfig"] = pki.kubeconfig(settings.paths.pki, user, settings.api_server)
    for name, content in files.items():
        file = settings.paths.config / name
        if file.exists() and file.read_text(encoding="utf-8") == content:
            continue  # kube-proxy exits when its file is written, even with the same content
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
        file.chmod(0o600)


def _ensure_running(component: Component, paths: Paths, groups: list[Path]) -> bool:
    """Start a component unless it runs, works and was started with this very configuration."""
    log = paths.logs / f"{component.name}.log"
    record = processes.find(paths.run, component.name)
    if record is not None:
        if record.fingerprint == component.fingerprint() and processes.works_within(component, _RECOVERY_SECONDS):
            return False
        processes.stop(paths.run, component.name)
    record = processes.start(component, paths.run, log, netns.enter(paths.network_namespace), groups)
    processes.wait_until_healthy(component, record, log)
    return True


def _import_pause_image(paths: Paths, programs: dict[str, str]) -> None:
    ctr = [programs["ctr"], "--address", str(paths.containerd_socket), "--namespace", "k8s.io", "images"]
    listed = _run([*ctr, "ls", "--quiet", f"name=={configs.PAUSE_IMAGE}"])
    if listed.strip():
        return
    archive = paths.run / "pause.tar"
    archive.write_bytes(image.archive(Path(programs["pause"]), configs.PAUSE_IMAGE))
    _run([*ctr, "import", str(archive)])
    archive.unlink()


def _apply_addons(settings: Settings, programs: dict[str, str]) -> None:
    file = settings.paths.config / "addons.json"
    file.write_text(addons.manifest(settings), encoding="utf-8")
    _run([*_kubectl(settings.paths, programs), "apply", "--server-side", "--force-conflicts", f"--filename={file}"])


def _wait_for_node(paths: Paths, programs: dict[str, str]) -> None:
    """Wait until pods can be created and will be run."""
    wait = [*_kubectl(paths, programs), "wait", _NODE_TIMEOUT]
    _run([*wait, "--for=create", f"node/{configs.NODE_NAME}"])
    _run([*wait, "--for=condition=Ready", f"node/{configs.NODE_NAME}"])
    _run([*wait, "--for=create", "serviceaccount/default", "--namespace=default"])


def _publish(settings: Settings, programs: dict[str, str]) -> None:
    """Write what users and tests read into the checkout."""
    paths, network = settings.paths, settings.network
    folder = paths.published
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(pki.kubeconfig(paths.pki, "admin", settings.api_server), encoding="utf-8")
    kubeconfig.chmod(0o600)
    for name in ("kubectl", "helm"):
        link = folder / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(programs[name])
    ClusterInfo(
        cluster_id=paths.cluster_id,
        kubernetes_version=builds.folder_of(builds.FAMILIES[0], paths.programs).name.removeprefix("kubernetes-"),
        kubeconfig=str(kubeconfig),
        kubectl=programs["kubectl"],
        helm=programs["helm"],
        api_server=settings.api_server,
        node_name=configs.NODE_NAME,
        node_address=str(network.node_address),
        host_address=str(network.host_address),
        pod_cidr=str(network.pods),
        service_cidr=str(network.services),
        dns_address=str(network.dns_address),
        registry=settings.registry,
        image_prefix=configs.IMAGE_PREFIX,
        containerd_socket=str(paths.containerd_socket),
        network_namespace=str(paths.network_namespace),
        kubelet_root=str(paths.kubelet),
        logs=str(paths.logs),
    ).save(paths.checkout)


def _kubectl(paths: Paths, programs: dict[str, str]) -> list[str]:
    return [programs["kubectl"], f"--kubeconfig={paths.config}/admin.kubeconfig"]


def _run(command: list[str]) -> str:
    environment = {"PATH": packages.SEARCH_PATH, "HOME": "/root"}  # no proxy settings
    done = subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ClusterError(f"`{Path(command[0]).name} {' '.join(command[1:])}` failed: {done.stderr.strip()}")
    return done.stdout
