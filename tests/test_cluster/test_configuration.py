"""Rendered configuration: complete, well-formed, and every file that a component is told to read exists."""

import json
import tomllib
from pathlib import Path

import pytest

from hack.cluster import addons, builds, configs, packages
from hack.cluster.components import NAMES, components
from hack.cluster.configs import Settings
from hack.cluster.network import Network
from hack.cluster.paths import Paths

SETTINGS = Settings(Paths(Path("/src/checkout"), Path("/cache/forebay")), Network(7), Path("/usr/lib/cni"))
PROGRAMS = {
    name: f"/bin/{name}"
    for name in (*packages.PACKAGES, *(program for family in builds.FAMILIES for program in family.packages))
}
KUBECONFIGS = ("kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns")


def test_components_start_in_the_order_in_which_they_are_named() -> None:
    assert tuple(component.name for component in components(SETTINGS, PROGRAMS)) == NAMES


def test_every_configuration_file_that_is_read_is_rendered() -> None:
    paths = SETTINGS.paths
    rendered = {str(paths.config / name) for name in configs.render(SETTINGS)}
    rendered |= {str(paths.config / f"{user}.kubeconfig") for user in KUBECONFIGS}
    for component in components(SETTINGS, PROGRAMS):
        words = [word.partition("=")[2] or word for word in component.command]
        read = {word for word in (*words, *map(str, component.files)) if word.startswith(f"{paths.config}/")}
        assert read <= rendered, component.name


@pytest.mark.parametrize("name", ["kubelet.yaml", "kube-proxy.yaml", "registry.yaml", "cni/10-forebay.conflist"])
def test_json_files_are_json(name: str) -> None:
    assert json.loads(configs.render(SETTINGS)[name])


def test_containerd_keeps_everything_in_this_clusters_folders() -> None:
    config = tomllib.loads(configs.render(SETTINGS)["containerd.toml"])
    kubernetes = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert config["root"] == str(SETTINGS.paths.containerd)
    assert config["state"].startswith(str(SETTINGS.paths.run))
    assert kubernetes["netns_mounts_under_state_dir"] is True
    assert kubernetes["containerd"]["runtimes"]["runc"]["options"]["Root"].startswith(str(SETTINGS.paths.run))


def test_pods_ask_the_dns_service_which_leads_to_the_node() -> None:
    kubelet = json.loads(configs.render(SETTINGS)["kubelet.yaml"])
    items = json.loads(addons.manifest(SETTINGS))["items"]
    service = next(item for item in items if item["kind"] == "Service")
    endpoints = next(item for item in items if item["kind"] == "EndpointSlice")
    assert kubelet["clusterDNS"] == [service["spec"]["clusterIP"]] == ["10.215.7.10"]
    assert endpoints["endpoints"][0]["addresses"] == ["10.213.7.2"]
    assert endpoints["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]
    assert endpoints["ports"] == service["spec"]["ports"]


def test_checkouts_get_different_clusters_with_names_that_fit_the_kernel() -> None:
    one, other = (Paths(Path(checkout), Path("/cache")) for checkout in ("/src/one", "/src/other"))
    assert one.cluster_id != other.cluster_id
    assert len(one.interface) <= 15
    assert len(str(one.containerd_socket)) < 108


@pytest.mark.parametrize(
    ("configured", "cache"),
    [("/var/cache/me", "/var/cache/me/forebay"), ("", "/home/me/.cache/forebay"), ("rel", "/home/me/.cache/forebay")],
)
def test_the_cache_folder_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch, configured: str, cache: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", configured)
    assert Paths.of_checkout(Path("/src")).cache == Path(cache)
