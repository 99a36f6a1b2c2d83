"""The cluster's network namespace, its cable to the host and the host's routes into it, through iproute2."""

import json
import subprocess
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

from hack.cluster import locks
from hack.cluster.errors import ClusterError
from hack.cluster.mounts import mount_points
from hack.cluster.network import Network, free_network
from hack.cluster.packages import program
from hack.cluster.paths import RUN_ROOT, Paths

_ALLOCATION_LOCK = RUN_ROOT / "network.lock"


def existing_network(paths: Paths) -> Network | None:
    """Return the network of a namespace that is in place, or None after a reboot, `down` or a half-done creation."""
    record = paths.run / "network.json"
    if not record.exists() or paths.network_namespace not in mount_points():
        return None
    return Network(int(json.loads(record.read_text(encoding="utf-8"))["index"]))


def create(paths: Paths) -> Network:
    """Choose free addresses and create namespace, cable and routes.

    The routes are what marks addresses as taken, so choice and routes happen under one lock for the whole machine.

    Raises:
        ClusterError: no addresses are free, or a command failed.
    """
    with locks.exclusive(_ALLOCATION_LOCK):
        network = free_network(_networks_in_use())
        namespace = paths.network_namespace
        namespace.touch()
        _run("unshare", f"--net={namespace}", "true")
        _ip("link", "add", paths.interface, "type", "veth", "peer", "name", "eth0", "netns", str(namespace))
        _ip("address", "add", f"{network.host_address}/{network.link.prefixlen}", "dev", paths.interface)
        _ip("link", "set", paths.interface, "up")
        for inside in (
            f"address add {network.node_address}/{network.link.prefixlen} dev eth0",
            "link set lo up",
            "link set eth0 up",
            f"route add default via {network.host_address}",
        ):
            _run(*enter(namespace), program("ip"), *inside.split())
        _run(*enter(namespace), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for destination in (network.pods, network.services):
            _ip("route", "add", str(destination), "via", str(network.node_address))
    (paths.run / "network.json").write_text(json.dumps({"index": network.index}), encoding="utf-8")
    return network


def remove_interface(paths: Paths) -> None:
    """Remove the cable, and with it the host's routes; nothing happens when it is gone.

    The namespace itself ends when its file is unmounted and its last process is gone.

    Raises:
        ClusterError: it cannot be removed.
    """
    interface = Path("/sys/class/net") / paths.interface
    try:
        if interface.exists():
            _ip("link", "delete", paths.interface)
    except ClusterError:
        if interface.exists():  # else it ended together with its namespace just then
            raise


def enter(namespace: Path) -> tuple[str, ...]:
    """Return the words that, put before a command, run it inside.

    Not `ip netns exec`, which mounts a fresh /sys in which the kubelet finds no cgroups.
    """
    return (program("nsenter"), f"--net={namespace}", "--")


def _networks_in_use() -> list[IPv4Network]:
    routes = json.loads(_ip("-json", "-4", "route", "show", "table", "all"))
    networks = [IPv4Network(route["dst"], strict=False) for route in routes if route["dst"] != "default"]
    for interface in json.loads(_ip("-json", "-4", "address", "show")):
        for address in interface["addr_info"]:
            networks.append(IPv4Interface(f"{address['local']}/{address['prefixlen']}").network)
    return networks


def _ip(*arguments: str) -> str:
    return _run(program("ip"), *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
