"""At start: ask the API server for each right, because a forbidden watch would be retried for ever in silence."""

import logging
from collections.abc import Sequence

from forebay_operator.kube import Kube
from forebay_operator.rights import RIGHTS, Right

logger = logging.getLogger(__name__)


async def missing_rights(kube: Kube, namespaces: Sequence[str]) -> tuple[list[str], list[Right]]:
    """What is not allowed: required rights as lines for people, and optional rights as they stand in the list.

    Raises:
        ApiError: the API server could not be asked.
    """
    lines: list[str] = []
    optional: list[Right] = []
    for right in RIGHTS:
        for namespace in (None,) if right.cluster_scoped else namespaces or (None,):
            refused = [verb for verb in right.verbs if not await kube.may(right, verb, namespace)]
            if not refused:
                continue
            if right.required:
                where = f"in namespace {namespace}" if namespace else "in all namespaces"
                resource, slash, subresource = right.resource.partition("/")
                kind = (f"{resource}.{right.group}" if right.group else resource) + slash + subresource
                lines.append(f"{', '.join(refused)} {kind} {where} (for: {right.why})")
            else:
                optional.append(right)
    return lines, optional
