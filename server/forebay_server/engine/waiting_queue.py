"""WaitingQueue: who is admitted next. By priority, then by turns between tenants, then by arrival.

Turns are taken by tokens: every tenant has a count of the tokens that were computed for it, and the one with the
smallest count goes first, however many requests the others have queued (the virtual token counter of Sheng et al.,
"Fairness in Serving Large Language Models", OSDI 2024, equation-free: counts instead of times). A tenant that comes or
comes back starts at the virtual time, which moves on by the tokens of a step divided by the number of tenants that want
some: nobody saves up claims while idle, and nobody can hold others back by inventing new tenants.

With one tenant, or none named, this is first come, first served.
"""

import heapq
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from forebay_server.engine.request import Request, Tenant


@dataclass(slots=True)
class _Account:
    """A tenant that has requests, and those of them that wait."""

    tenant: Tenant
    num_requests: int = 0
    waiting: list[Request] = field(default_factory=list)
    """Sorted by order."""


class WaitingQueue:
    """The requests that wait, and the tenants of all that have not ended."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._virtual_time = 0.0
        self._num_waiting = 0

    def __len__(self) -> int:
        """Requests that wait."""
        return self._num_waiting

    @property
    def num_tenants(self) -> int:
        """Tenants that have requests."""
        return len(self._accounts)

    def enter(self, name: str) -> Tenant:
        """Count in a new request of a tenant; returns whom its tokens are booked on."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account(Tenant(name, self._virtual_time))
        account.num_requests += 1
        return account.tenant

    def leave(self, tenant: Tenant) -> None:
        """Count out a request that ended; a tenant without requests is forgotten."""
        account = self._accounts[tenant.name]
        account.num_requests -= 1
        if account.num_requests == 0:
            del self._accounts[tenant.name]

    def advance(self, num_tokens: int) -> None:
        """Move the virtual time on by a step of so many tokens."""
        if self._accounts:
            self._virtual_time += num_tokens / len(self._accounts)

    def add(self, request: Request) -> None:
        """Let a request wait, at its place by priority and arrival among those of its tenant."""
        insort(self._accounts[request.tenant.name].waiting, request, key=_order)
        self._num_waiting += 1

    def remove(self, request: Request) -> None:
        """Take a request out."""
        self._accounts[request.tenant.name].waiting.remove(request)
        self._num_waiting -= 1

    def in_turn(self) -> Iterator[Request]:
        """The waiting requests, as they are to be admitted; the one just given may be removed meanwhile.

        Whose turn is next is decided with the tokens that tenants have been given until then.
        """
        turns = [(_turn(account.waiting[0]), 0, account) for account in self._accounts.values() if account.waiting]
        heapq.heapify(turns)
        while turns:
            turn, index, account = turns[0]
            request = account.waiting[index]
            now = _turn(request)
            if now != turn:  # its tenant was given tokens since
                heapq.heapreplace(turns, (now, index, account))
                continue
            yield request
            if index < len(account.waiting) and account.waiting[index] is request:
                index += 1  # it stays: it cannot be admitted now
            if index < len(account.waiting):
                heapq.heapreplace(turns, (_turn(account.waiting[index]), index, account))
            else:
                heapq.heappop(turns)


def _order(request: Request) -> tuple[int, float, int]:
    return request.order


def _turn(request: Request) -> tuple[int, float, float, int]:
    """Smaller goes first; no two are equal, since sequence numbers differ."""
    priority, arrival_time, sequence_number = request.order
    return priority, request.tenant.num_tokens, arrival_time, sequence_number
