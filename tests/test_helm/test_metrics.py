"""Prometheus finds the operator, in clusters that have Prometheus Operator and in those that do not."""

import pytest

from tests.test_helm.chart import of_kind, only, refusal, render

MONITORING = ("monitoring.coreos.com/v1",)


def test_a_service_leads_to_the_health_port_of_the_operators_pod_only() -> None:
    manifests = render()
    service, pod = only(manifests, "Service"), only(manifests, "Deployment")["spec"]["template"]
    assert service["metadata"]["name"] == "forebay-operator-metrics"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] == pod["spec"]["containers"][0]["ports"][0]["name"]


def test_a_service_monitor_is_made_only_where_the_cluster_knows_the_kind() -> None:
    assert not of_kind(render(), "ServiceMonitor")
    manifests = render("metrics.serviceMonitor.labels.release=prometheus", api_versions=MONITORING)
    monitor, service = only(manifests, "ServiceMonitor"), only(manifests, "Service")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (service["spec"]["ports"][0]["name"], "/metrics")


def test_both_can_be_left_out() -> None:
    off = render("metrics.serviceMonitor.enabled=false", api_versions=MONITORING)
    assert not of_kind(off, "ServiceMonitor")
    off = render("metrics.service=false", api_versions=MONITORING)
    assert not of_kind(off, "Service")
    assert not of_kind(off, "ServiceMonitor")


def test_the_name_stays_a_name_of_a_service() -> None:
    name = only(render(f"fullnameOverride={'a.' * 31}b"), "Service")["metadata"]["name"]
    assert len(name) <= 63
    assert "." not in name


@pytest.mark.parametrize("setting", ["metrics.serviceMonitor.interval=soon", "metrics.port=1"])
def test_impossible_values_are_refused(setting: str) -> None:
    assert "metrics" in refusal(setting)
