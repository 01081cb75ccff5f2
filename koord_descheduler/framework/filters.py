"""Filters of pods by namespace, labels and functions, and their combination.

Source: Kubernetes descheduler, pkg/descheduler/pod: the options of a FilterFunc.
"""

from collections.abc import Callable, Collection, Iterable

from koord.api.labelselector import LabelSelector
from koord.cluster.facts import ClusterPod
from koord_descheduler.config.pluginargs.parts import Namespaces

FilterFunc = Callable[[ClusterPod], bool]
"""Whether a pod is meant."""


def combine(*filters: FilterFunc | None) -> FilterFunc:
    """Return the conjunction, which asks in this order and no further than needed; None: none."""
    wanted = tuple(each for each in filters if each is not None)
    return lambda pod: all(each(pod) for each in wanted)


def pod_filter(
    *,
    include: Collection[str] = (),
    exclude: Collection[str] = (),
    selector: LabelSelector | None = None,
    custom: FilterFunc | None = None,
) -> FilterFunc:
    """Return the filter for pods of these namespaces, not of those, with these labels.

    Without included namespaces all are meant. The order is that of the arguments.
    """
    wanted, unwanted = frozenset(include), frozenset(exclude)
    return combine(
        (lambda pod: pod.namespace in wanted) if wanted else None,
        (lambda pod: pod.namespace not in unwanted) if unwanted else None,
        (lambda pod: selector.matches(pod.labels)) if selector is not None else None,
        custom,
    )


def pods_in(namespaces: Namespaces | None, selector: LabelSelector | None = None) -> FilterFunc:
    """Return the filter for the pods that a plugin's arguments are about; None: all."""
    named = namespaces or Namespaces()
    return pod_filter(include=named.include, exclude=named.exclude, selector=selector)


def unfinished(pods: Iterable[ClusterPod], wanted: FilterFunc) -> list[ClusterPod]:
    """Return the pods that have not ended for good and pass the filter, in their order."""
    return [pod for pod in pods if not pod.finished and wanted(pod)]
