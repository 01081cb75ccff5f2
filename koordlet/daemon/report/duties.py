"""Builds what does koord-manager's duties for this node. Imported only in a cluster."""

from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry

from koord.api.nodes.node import Node
from koord.kube.client import ApiClient
from koord.kube.eventobjects import Event, EventType, ObjectRef
from koord.util.clock import Clock
from koordlet.daemon.settings.flags import DaemonFlags
from koordlet.manager_fallback.changes import NODE_METRIC, NODE_SLO, Duty
from koordlet.manager_fallback.duties import DutyOptions, ManagerDuties
from koordlet.manager_fallback.mode import DutyMode
from koordlet.statesinformer.objects.kubesources import OwnObject


def build_duties(
    options: DaemonFlags,
    *,
    node: OwnObject[Node],
    node_metric: OwnObject[Any],
    node_slo: OwnObject[Any],
    client: ApiClient,
    clock: Clock,
    registry: CollectorRegistry,
    observe_only: Callable[[], Awaitable[str]],
    node_name: str,
    emit: Callable[[Event], None],
) -> ManagerDuties | None:
    """Return the duties; None: there are none, or they are left to others.

    observe_only says, once that is known, why nothing may be written; "" when it may be.
    """

    def report(message: str) -> None:
        # On the Node: on the ConfigMap there would be one of each node of the cluster.
        about = ObjectRef("v1", "Node", node_name, uid=node_name)  # as the kubelet's events
        emit(Event(about, EventType.WARNING, "ConfigRejected", message, "koordlet-duties"))

    kept = _kept(options, node_metric, node_slo)
    if not kept:
        return None
    duty_options = DutyOptions(
        mode=options.manager_duties.value,
        config_namespace=options.config_namespace.value,
        config_name=options.slo_config_name.value,
    )
    return ManagerDuties(
        duty_options,
        kept,
        node,
        client=client,
        clock=clock,
        registry=registry,
        observe_only=observe_only,
        report=report,
    )


def _kept(
    options: DaemonFlags, node_metric: OwnObject[Any], node_slo: OwnObject[Any]
) -> list[tuple[Duty, OwnObject[Any]]]:
    """The objects to keep: not those that are not used, or that a file stands for.

    With a file for the Node the cluster's is not followed, which has to own the objects.
    """
    if options.manager_duties.value is DutyMode.OFF or options.node_file.value:
        return []
    kept = [(NODE_METRIC, node_metric)] if options.enable_node_metric_report.value else []
    return kept if options.nodeslo_file.value else [*kept, (NODE_SLO, node_slo)]
