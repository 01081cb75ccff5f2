"""slo-controller-config as the manager reads it: also the ratios of nodes' CPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord.api.slocontroller import CpuRatiosConfig, SLOConfig, load_config, load_cpu_ratios
from koord.util.errors import InvalidObject


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The whole ConfigMap, the last good value of each key."""

    slo: SLOConfig = field(default_factory=SLOConfig)
    ratios: CpuRatiosConfig = field(default_factory=CpuRatiosConfig)


def load_cluster_config(
    data: Mapping[str, object] | None, previous: ClusterConfig
) -> tuple[ClusterConfig, tuple[InvalidObject, ...]]:
    """Return what the data of the ConfigMap says, None: there is none; and what is wrong with it.

    A key that is rejected keeps what it is in previous.
    """
    slo, problems = load_config(data, previous.slo)
    ratios, others = load_cpu_ratios(data, previous.ratios)
    return ClusterConfig(slo, ratios), (*problems, *others)
