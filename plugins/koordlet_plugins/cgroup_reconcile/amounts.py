"""Memory values of cgroups from requests and limits. Pure; in bytes, -1 for no limit."""

import mmap

from koord.api.pods.pod import Container, Pod
from koord.api.pods.requests import BATCH_MEMORY, pod_request
from koord.api.qos import QoSClass
from koord.api.quantity import Quantity
from koord.api.slo.resourceqos import MemoryQoS

NO_LIMIT = -1


def memory_name(pod: Pod) -> str:
    """Return the name of the resource in which a pod requests memory."""
    return BATCH_MEMORY if pod.raw_qos_class is QoSClass.BE else "memory"


def requested(pod: Pod) -> int:
    """Return the memory that a pod requests."""
    return max(pod_request(pod, memory_name(pod)), 0)


def request_and_limit(container: Container, name: str) -> tuple[int, int]:
    """Return a container's request, 0 without one, and its limit."""
    request, limit = (
        Quantity.parse(quantities.get(name, "0")).integer
        for quantities in (container.requests, container.limits)
    )
    return max(request, 0), limit if limit > 0 else NO_LIMIT


def share(request: int, percent: int) -> int:
    """Return percent % of a request."""
    return request * percent // 100


def guaranteed(request: int, settings: MemoryQoS) -> tuple[int, int]:
    """Return the memory that is never reclaimed (min), and that reclaimed only in need (low)."""
    least = share(request, settings.min_limit_percent)
    low = share(request, settings.low_limit_percent)
    return least, max(low, least) if low > 0 else low


def throttled_from(request: int, limit: int, node: int, settings: MemoryQoS) -> int:
    """Return the usage from which allocations are slowed down (high).

    node is the memory of all pods together; it replaces a missing limit.
    """
    percent = settings.throttling_percent
    if percent == 0:
        return NO_LIMIT
    most = limit if limit > 0 else node
    high = request + max(most - request, 0) * percent // 100
    high -= high % mmap.PAGESIZE
    least, _ = guaranteed(request, settings)
    return max(high, least) if high > 0 else high
