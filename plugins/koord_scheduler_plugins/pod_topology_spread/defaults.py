"""The constraints of pods that have none: about the pods with which one belongs together.

Source: Kubernetes, plugins/helper DefaultSelector.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from koord_scheduler.plugin import ClusterPod, ClusterState, Selector, SpreadConstraint
from koord_scheduler_plugins.pod_topology_spread.args import (
    DefaultConstraint,
    DefaultingType,
    PodTopologySpreadArgs,
    Policy,
    WhenUnsatisfiable,
)

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
CONTROLLERS = frozenset({"ReplicationController", "ReplicaSet", "StatefulSet"})

_SYSTEM = tuple(
    DefaultConstraint(
        max_skew=skew,
        topology_key=key,
        when_unsatisfiable=WhenUnsatisfiable.SCHEDULE_ANYWAY,
    )
    for key, skew in ((HOSTNAME, 3), (ZONE, 5))
)


class Defaults:
    """The default constraints of one profile."""

    def __init__(self, args: PodTopologySpreadArgs, cluster: ClusterState) -> None:
        self.of_system = args.defaulting_type is DefaultingType.SYSTEM
        self._cluster = cluster
        wanted = _SYSTEM if self.of_system else args.default_constraints
        self._hard = tuple(_constraints(wanted, WhenUnsatisfiable.DO_NOT_SCHEDULE))
        self._soft = tuple(_constraints(wanted, WhenUnsatisfiable.SCHEDULE_ANYWAY))

    def hard(self, pod: ClusterPod) -> tuple[SpreadConstraint, ...]:
        """Those with DoNotSchedule."""
        return self._about(pod, self._hard)

    def soft(self, pod: ClusterPod) -> tuple[SpreadConstraint, ...]:
        """Those with ScheduleAnyway."""
        return self._about(pod, self._soft)

    def _about(
        self, pod: ClusterPod, constraints: tuple[SpreadConstraint, ...]
    ) -> tuple[SpreadConstraint, ...]:
        selector = default_selector(pod, self._cluster) if constraints else ()
        if not selector:
            return ()
        return tuple(replace(one, selector=selector) for one in constraints)


def default_selector(pod: ClusterPod, cluster: ClusterState) -> Selector:
    """Return what all services that select the pod, and its controller, select; (): there is none.

    Of the controllers a ReplicationController, ReplicaSet or StatefulSet counts.
    """
    selectors = [service.selector for service in cluster.services.selecting(pod)]
    controller = cluster.workloads.controlling(pod)
    if controller is not None and controller.kind in CONTROLLERS:
        selectors.append(controller.selector)
    if not selectors:
        return ()
    return tuple(dict.fromkeys(one for selector in selectors for one in selector or ()))


def _constraints(
    wanted: Iterable[DefaultConstraint], when: WhenUnsatisfiable
) -> Iterable[SpreadConstraint]:
    return (
        SpreadConstraint(
            topology_key=one.topology_key,
            max_skew=one.max_skew,
            selector=None,
            min_domains=one.min_domains or 1,
            honor_affinity=one.node_affinity_policy is Policy.HONOR,
            honor_taints=one.node_taints_policy is Policy.HONOR,
        )
        for one in wanted
        if one.when_unsatisfiable is when
    )
