"""Ratios of a node's CPU: normalization by its model, and amplification of its allocatable."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord.api.gojson import shape_of, wire
from koord.api.slocontroller import ConfigKey, StrategyConfig, load_key
from koord.util.errors import InvalidObject

CPU_NORMALIZATION = "node.koordinator.sh/cpu-normalization-ratio"  # annotation of a Node
CPU_NORMALIZATION_ENABLED = "node.koordinator.sh/cpu-normalization-enabled"  # label of a Node
RESOURCE_AMPLIFICATION = "node.koordinator.sh/resource-amplification-ratio"  # annotation of a Node
CPU_BASIC_INFO = "node.koordinator.sh/cpu-basic-info"  # annotation of a NodeResourceTopology
LOWEST_RATIO, HIGHEST_RATIO = 1.0, 5.0  # of a normalization


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRatios:
    """The ratios of one CPU model; None: that of the whole strategy."""

    base: float | None = wire("baseRatio")
    hyper_threading: float | None = wire("hyperThreadEnabledRatio")
    turbo: float | None = wire("turboEnabledRatio")
    both: float | None = wire("hyperThreadTurboEnabledRatio")

    def ratio(self, *, hyper_threading: bool, turbo: bool) -> float | None:
        """Return the ratio of a machine of this model."""
        if hyper_threading:
            return self.both if turbo else self.hyper_threading
        return self.turbo if turbo else self.base


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuNormalization:
    """cpu-normalization-config: how much more a core of each model does than that of the base."""

    enable: bool = wire("enable", False)
    default_ratio: float | None = wire("defaultRatio")
    models: Mapping[str, ModelRatios] = wire("ratioModel", factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceAmplification:
    """resource-amplification-config: factors of allocatable, by resource."""

    enable: bool = wire("enable", False)
    ratios: Mapping[str, float] = wire("resourceAmplificationRatio", factory=dict)


NORMALIZATION = shape_of(CpuNormalization)
AMPLIFICATION = shape_of(ResourceAmplification)
_NORMALIZATION = ConfigKey(
    "cpu-normalization-config",
    NORMALIZATION,
    NORMALIZATION.dump(CpuNormalization()),
    cluster_field=None,
    entries_field="nodeConfigs",
)
_AMPLIFICATION = ConfigKey(
    "resource-amplification-config",
    AMPLIFICATION,
    AMPLIFICATION.dump(ResourceAmplification()),
    cluster_field=None,
    entries_field="nodeConfigs",
)


@dataclass(frozen=True, slots=True)
class CpuRatiosConfig:
    """Both keys of the ConfigMap, the last good value of each. The empty one is all defaults."""

    normalization: StrategyConfig = field(default_factory=_NORMALIZATION.unset)
    amplification: StrategyConfig = field(default_factory=_AMPLIFICATION.unset)


def load_cpu_ratios(
    data: Mapping[str, object] | None, previous: CpuRatiosConfig
) -> tuple[CpuRatiosConfig, tuple[InvalidObject, ...]]:
    """Return the ratios in the data of the ConfigMap, and what was wrong with them.

    As load_config of koord.api.slocontroller does: None is no ConfigMap, and a key that is rejected
    keeps what it is in previous.
    """
    if data is None:
        return CpuRatiosConfig(), ()
    problems: list[InvalidObject] = []

    def load(key: ConfigKey, last: StrategyConfig) -> StrategyConfig:
        try:
            return load_key(key, data.get(key.name), problems)
        except InvalidObject as err:
            problems.append(err)
            return last

    config = CpuRatiosConfig(
        load(_NORMALIZATION, previous.normalization), load(_AMPLIFICATION, previous.amplification)
    )
    return config, tuple(problems)
