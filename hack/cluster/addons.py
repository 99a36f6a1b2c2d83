"""Kubernetes objects that the cluster itself needs: names for pods, and rights for our two non-standard users. Pure."""

import json
from typing import Any

from hack.cluster.configs import Settings

_RBAC = "rbac.authorization.k8s.io"


def manifest(settings: Settings) -> str:
    """Return everything as one List in JSON, for `kubectl apply`."""
    items = [*_dns(settings), *_dns_rights(), _kubelet_rights()]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2) + "\n"


def _dns(settings: Settings) -> list[dict[str, Any]]:
    """Return the DNS Service; CoreDNS is a process of the node, so its one endpoint is written by hand."""
    metadata = {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}}
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"clusterIP": str(settings.network.dns_address), "ports": ports},
    }
    owner = {"kubernetes.io/service-name": "kube-dns", "endpointslice.kubernetes.io/managed-by": "forebay-cluster"}
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kube-dns-node", "namespace": "kube-system", "labels": owner},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [str(settings.network.node_address)], "conditions": {"ready": True}}],
        "ports": ports,
    }
    return [service, endpoints]


def _dns_rights() -> list[dict[str, Any]]:
    watched = [("", ["services", "namespaces"]), ("discovery.k8s.io", ["endpointslices"])]
    role = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:coredns"},
        "rules": [
            {"apiGroups": [group], "resources": resources, "verbs": ["list", "watch"]} for group, resources in watched
        ],
    }
    return [role, _binding("system:coredns", "system:coredns", "system:coredns")]


def _kubelet_rights() -> dict[str, Any]:
    """Return the binding that lets the API server fetch logs from, and exec through, the kubelet."""
    return _binding("forebay:kubelet-api", "system:kubelet-api-admin", "kube-apiserver-kubelet-client")


def _binding(name: str, role: str, user: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}],
    }
