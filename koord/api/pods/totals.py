"""Totals of a pod over its containers, by Kubernetes' rules.

Source: Kubernetes, component-helpers/resource (PodLimits); pkg/kubelet/cm (ResourceConfigForPod).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from koord.api.pods.pod import Container, Pod
from koord.api.quantity import Quantity


@dataclass(frozen=True, slots=True)
class Share:
    """The addition of one init container, in any unit."""

    amount: int
    sidecar: bool


def is_sidecar(container: Container) -> bool:
    """Whether an init container runs as long as the pod."""
    return container.restart_policy == "Always"


def running_total(regular: Iterable[int], init: Iterable[Share]) -> int:
    """Return the most that is needed at a time.

    Init containers run one after the other before the regular ones, each beside the sidecars that
    were started before it.
    """
    started = peak = 0
    for share in init:
        if share.sidecar:
            started += share.amount
        peak = max(peak, started if share.sidecar else started + share.amount)
    return max(sum(regular) + started, peak)


def pod_total(pod: Pod, amount: Callable[[Container], int]) -> int:
    """Return the total over all containers of a pod, given the amount of one."""
    shares = (Share(amount(one), is_sidecar(one)) for one in pod.init_containers)
    return running_total(map(amount, pod.containers), shares)


def pod_limit(pod: Pod, resource: str) -> Quantity | None:
    """Return the limit of a pod as a whole, overhead included.

    None: it has none, as one of its containers has none. A limit of the pod itself comes before
    those of its containers.
    """
    if resource in pod.limits:
        total = Quantity.parse(pod.limits[resource]).nano
    else:
        containers = pod.containers + pod.init_containers
        if not containers or any(_limit(one, resource) <= 0 for one in containers):
            return None
        total = pod_total(pod, lambda one: _limit(one, resource))
    return Quantity(total + _nano(pod.overhead.get(resource)))


def _limit(container: Container, resource: str) -> int:
    """In billionths of the unit."""
    return _nano(container.limits.get(resource))


def _nano(text: str | None) -> int:
    return Quantity.parse(text).nano if text else 0
