"""Debian packages: finds out which programs are missing and installs just those."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from hack.cluster.errors import ClusterError

# Program -> Debian package that ships it.
PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "docker-registry": "docker-registry",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "umount": "mount",
    "openssl": "openssl",
}
CNI_PACKAGE = "containernetworking-plugins"
CNI_PLUGINS = ("ptp", "host-local", "loopback", "portmap")
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))

# Services that these packages would start at boot: the cluster runs its own and wants no system-wide ones.
UNITS = {"containerd": "containerd.service", "docker-registry": "docker-registry.service"}
POLICY = Path("/usr/sbin/policy-rc.d")

# sbin is not on every user's PATH, and iptables lives there.
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def program(name: str) -> str:
    """Return the absolute path of a system program.

    Raises:
        ClusterError: it is not installed.
    """
    found = shutil.which(name, path=SEARCH_PATH)
    if found is None:
        raise ClusterError(f"{name} is not installed (Debian package {PACKAGES.get(name, name)}); run `up` first")
    return found


def cni_folder() -> Path | None:
    """Return the folder that holds every CNI plugin the cluster uses, or None."""
    for folder in CNI_FOLDERS:
        if all((folder / plugin).exists() for plugin in CNI_PLUGINS):
            return folder
    return None


def missing_packages() -> list[str]:
    """Return the Debian packages whose programs are not there, sorted."""
    missing = {package for name, package in PACKAGES.items() if shutil.which(name, path=SEARCH_PATH) is None}
    if cni_folder() is None:
        missing.add(CNI_PACKAGE)
    return sorted(missing)


def install(packages: list[str], log: Path) -> None:
    """Install Debian packages without starting or enabling the services that they bring.

    Args:
        packages: names, as `missing_packages` returns them.
        log: receives apt's output.

    Raises:
        ClusterError: there is no apt-get, or it failed.
    """
    if shutil.which("apt-get") is None:
        raise ClusterError(f"missing packages: {' '.join(packages)}; this is no Debian machine: install them by hand")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *packages]
    with log.open("wb") as output, _services_held_back():
        # An update that fails, for one mirror or for a lock, is no matter when the packages can be had all the same.
        subprocess.run(["apt-get", "update"], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed with exit code {done.returncode}; see {log}")
    systemctl = shutil.which("systemctl")
    for unit in (UNITS[package] for package in packages if package in UNITS):
        if systemctl is not None:
            subprocess.run([systemctl, "disable", unit], capture_output=True, check=False)


@contextlib.contextmanager
def _services_held_back() -> Iterator[None]:
    """Keep package scripts from starting services, the Debian way, unless a policy is there already."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
