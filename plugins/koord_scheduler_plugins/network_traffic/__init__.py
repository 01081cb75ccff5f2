"""NetworkTraffic: nodes with less network traffic are preferred.

The tutorial's plugin of this name, with its arguments and formulas. Figures are read beside the
cycles; a cycle looks at a column.
"""

from collections.abc import Hashable
from pathlib import Path
from zlib import crc32

from koord_scheduler.plugin import (
    ApiConfig,
    ClusterPod,
    CycleState,
    Handle,
    NodeInfo,
    NodeScore,
    NormalizeScorePlugin,
    RequestLimits,
    ScorePlugin,
    Scores,
    Status,
    Transport,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
    View,
    takes_args,
)
from koord_scheduler_plugins.network_traffic.agents import AgentsSource
from koord_scheduler_plugins.network_traffic.args import NetworkTrafficArgs
from koord_scheduler_plugins.network_traffic.meter import Meter
from koord_scheduler_plugins.network_traffic.metrics import TrafficMetrics
from koord_scheduler_plugins.network_traffic.prometheus import PrometheusHandle, PrometheusSource

__all__ = ["NetworkTraffic", "NetworkTrafficArgs", "PrometheusHandle"]


@takes_args(NetworkTrafficArgs)
class NetworkTraffic(
    ScorePlugin, VectorScorePlugin, NormalizeScorePlugin, VectorNormalizeScorePlugin
):
    """Score is a node's traffic; NormalizeScore turns it round: the least has 100."""

    def __init__(self, args: NetworkTrafficArgs, handle: Handle) -> None:
        """Profiles with the same arguments share what is read."""
        services, name = handle.services, f"NetworkTraffic-{crc32(repr(args).encode()):08x}"

        def make() -> Meter:
            metrics = services.metrics.own(TrafficMetrics)
            transport = transport_of(args, handle)
            kind = PrometheusSource if args.prometheus_address else AgentsSource
            source = kind(
                args,
                transport,
                services.clock,
                lambda result: metrics.queries.labels(name, result).inc(),
            )
            meter = Meter(args, source, transport, services.cluster, services.clock)
            metrics.add(name, meter)
            return meter

        self.meter = services.shared.get(name, make)

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return self.meter.measure.version

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return self.meter.measure.score(node.name)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return self.meter.measure.column(nodes)

    def normalize_score(
        self, state: CycleState, pod: ClusterPod, scores: list[NodeScore]
    ) -> Status | None:
        highest = max((one.score for one in scores), default=0)
        for one in scores:
            one.score = self.meter.measure.normalize(one.score, highest)
        return None

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return self.meter.measure.normalize_all(scores)


def transport_of(args: NetworkTrafficArgs, handle: Handle) -> Transport:
    """The connections to Prometheus, or to all agents."""
    config = ApiConfig(
        server=(args.prometheus_address or args.agent_address).rstrip("/"),
        source="the arguments of NetworkTraffic",
        server_setting="prometheusAddress" if args.prometheus_address else "agentAddress",
        verify_setting="insecureSkipVerify",
        ca=Path(args.ca_file) if args.ca_file else None,
        verify=not args.insecure_skip_verify,
        tls_server_name=args.server_name,
        token_file=Path(args.token_file) if args.token_file else None,
        certificate=Path(args.cert_file) if args.cert_file else None,
        key=Path(args.key_file) if args.key_file else None,
    )
    limits = RequestLimits(
        connect=args.timeout,
        headers=args.timeout,
        body=args.timeout,
        qps=0,
        connections=args.concurrency,
        keepalive=60.0 if args.prometheus_address else 0.0,
    )
    return Transport(config, handle.services.clock, limits=limits, user_agent="koord-scheduler")
