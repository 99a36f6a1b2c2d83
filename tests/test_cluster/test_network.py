"""Addresses: derived from the index, disjoint between clusters, never on top of the host's own routes."""

from ipaddress import IPv4Address, IPv4Network

import pytest

from hack.cluster.errors import ClusterError
from hack.cluster.network import MAX_CLUSTERS, Network, free_network


def test_addresses_follow_from_the_index() -> None:
    network = Network(3)
    assert network.host_address == IPv4Address("10.213.3.1")
    assert network.node_address == IPv4Address("10.213.3.2")
    assert network.pods == IPv4Network("10.214.3.0/24")
    assert network.api_service_address == IPv4Address("10.215.3.1")
    assert network.dns_address == IPv4Address("10.215.3.10")


def test_no_two_clusters_share_an_address() -> None:
    ranges = [
        part
        for index in range(MAX_CLUSTERS)
        for part in (Network(index).link, Network(index).pods, Network(index).services)
    ]
    assert len(set(ranges)) == 3 * MAX_CLUSTERS
    assert {part.prefixlen for part in ranges} == {24}


@pytest.mark.parametrize(
    ("in_use", "index"),
    [
        ([], 0),
        (["192.168.1.0/24", "127.0.0.0/8"], 0),
        (["10.213.0.0/24"], 1),
        (["10.214.0.0/24", "10.215.1.0/24"], 2),
        (["10.214.1.7/32", "10.213.0.1/32"], 2),
        (["10.213.0.0/20"], 16),
        (["10.0.0.0/8", "0.0.0.0/0"], 0),
    ],
)
def test_the_lowest_index_that_touches_no_route_is_taken(in_use: list[str], index: int) -> None:
    assert free_network(map(IPv4Network, in_use)).index == index


def test_a_full_machine_is_an_error_that_names_the_ranges() -> None:
    with pytest.raises(ClusterError, match=r"10\.213\.0\.0/16"):
        free_network([IPv4Network("10.215.0.0/16")])
