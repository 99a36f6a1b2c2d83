"""Addresses of a cluster: everything follows from one small index, and the free index is chosen here. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from hack.cluster.errors import ClusterError

_LINKS = IPv4Network("10.213.0.0/16")
_PODS = IPv4Network("10.214.0.0/16")
_SERVICES = IPv4Network("10.215.0.0/16")
MAX_CLUSTERS = 256

# A route this wide is a default of some kind (a VPN's, a data centre's): ours are narrower and win over it.
WIDE_PREFIX = 8


@dataclass(frozen=True, slots=True)
class Network:
    """Address ranges of one cluster.

    Attributes:
        index: 0 to MAX_CLUSTERS - 1; no two clusters of a machine share it.
    """

    index: int

    @property
    def link(self) -> IPv4Network:
        """The four addresses of the virtual cable between host and cluster."""
        return self._part(_LINKS)

    @property
    def host_address(self) -> IPv4Address:
        """The host, seen from nodes and pods."""
        return self.link[1]

    @property
    def node_address(self) -> IPv4Address:
        """The node, the API server and the registry, seen from the host and from pods."""
        return self.link[2]

    @property
    def pods(self) -> IPv4Network:
        """Pod addresses: 254 of them."""
        return self._part(_PODS)

    @property
    def services(self) -> IPv4Network:
        """ClusterIP addresses: 254 of them."""
        return self._part(_SERVICES)

    @property
    def api_service_address(self) -> IPv4Address:
        """ClusterIP of the `kubernetes` Service: the API server takes the first of the range."""
        return self.services[1]

    @property
    def dns_address(self) -> IPv4Address:
        """ClusterIP of the DNS Service."""
        return self.services[10]

    def _part(self, whole: IPv4Network) -> IPv4Network:
        return IPv4Network((whole[self.index * 256], 24))


def free_network(in_use: Iterable[IPv4Network]) -> Network:
    """Return the network with the lowest index that touches nothing on the host.

    Args:
        in_use: the host's routes and its interfaces' networks.

    Raises:
        ClusterError: every index is taken.
    """
    taken = [network for network in in_use if network.prefixlen > WIDE_PREFIX]
    for index in range(MAX_CLUSTERS):
        candidate = Network(index)
        ranges = (candidate.link, candidate.pods, candidate.services)
        if not any(one.overlaps(other) for one in ranges for other in taken):
            return candidate
    raise ClusterError(f"no free addresses: every part of {_LINKS}, {_PODS} and {_SERVICES} has a route on this host")
