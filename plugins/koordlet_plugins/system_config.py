"""Sets the memory and scheduler parameters of the node by its NodeSLO.

Reads the NodeSLO's systemStrategy and the node's memory capacity; claims sysctl and sysfs values. A
value that is no longer in the NodeSLO is restored.
"""

from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

from koord.api.qosstrategy import SystemStrategy
from koord.api.quantity import Quantity
from koord.plugin import Stop
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    ExtensionPlugin,
    FlagSet,
    Level,
    MetricCache,
    PluginRegistry,
    States,
    Target,
    resources,
)
from koordlet.plugin.kernel import AuditText, Part, Resource
from koordlet.plugin.pods import strategy_interval

_MEMORY = "update calculated mem config {name} to : {{value}}"


class Parameter(NamedTuple):
    """A kernel value, and the audit log's message when it is set."""

    resource: Resource[int]
    message: str
    part: Part = Part.VALUE  # PIN: other plugins may want another value, and the NodeSLO decides


MIN_FREE = Parameter(resources.MIN_FREE_KBYTES, _MEMORY.format(name="min_free_kbytes"))
# By the field of the strategy that has the value.
PLAIN = {
    "watermark_scale_factor": Parameter(
        resources.WATERMARK_SCALE_FACTOR, _MEMORY.format(name="watermark_scale_factor")
    ),
    "memcg_reap_background": Parameter(
        resources.MEMCG_REAPER, _MEMORY.format(name="reap_background")
    ),
    "sched_group_identity_enabled": Parameter(
        resources.SCHED_GROUP_IDENTITY,
        _MEMORY.format(name="sched_group_identity_enabled"),
        Part.PIN,
    ),
    "sched_idle_saver_wmark": Parameter(
        resources.SCHED_IDLE_SAVER_WMARK,
        "update calculated mem config sched_idle_saver_wmark to :{value}",
    ),
    "page_cache_limit_enabled": Parameter(
        resources.PAGECACHE_LIMIT, "update sysfs config pagecache_limit enabled to :{value}"
    ),
}
FEATURES = {
    name: Parameter(resource, f"update sched_features {name} to : {{value}}")
    for name, resource in resources.SCHED_FEATURE.items()
}


class DesiredParameter(NamedTuple):
    """A value that the NodeSLO asks for."""

    parameter: Parameter
    value: int
    reason: str
    inputs: dict[str, float | str]


def desired_parameters(strategy: SystemStrategy, memory: int) -> Iterator[DesiredParameter]:
    """Yield the values of a strategy on a node with that much memory in bytes. Pure."""
    factor = strategy.min_free_kbytes_factor
    if factor is not None:
        yield DesiredParameter(
            MIN_FREE,
            memory // 1024 * factor // 10_000,
            "minFreeKbytesFactor ten-thousandths of the node's memory",
            {"factor": factor, "memory_bytes": memory},
        )
    for field, parameter in PLAIN.items():
        value = getattr(strategy, field)
        if value is not None:
            yield DesiredParameter(parameter, value, "as systemStrategy says", {})
    for name, is_on in strategy.sched_features.items():
        if name in FEATURES:
            yield DesiredParameter(FEATURES[name], int(is_on), "as schedFeatures says", {})


def is_usable(want: DesiredParameter) -> bool:
    """Whether the kernel would take the value."""
    [validate] = {file.validate for file in want.parameter.resource.files.values()}
    return validate is None or validate(str(want.value))


def rejected_settings(
    strategy: SystemStrategy, pod_settings: Iterable[DesiredParameter]
) -> Iterator[tuple[str, str]]:
    """Yield the values of a strategy that cannot be used, by name, and why not."""
    for want in pod_settings:
        if not is_usable(want):
            why = f"{want.value} is out of range; the node keeps what it has"
            yield want.parameter.resource.name, why
    for name in strategy.sched_features:
        if name not in FEATURES:
            yield "sched_features", f"{name} is no feature that koordlet can restore"


class SystemConfig(ExtensionPlugin):
    """Keeps the node's parameters at the values of the NodeSLO."""

    gates = ("SystemConfig",)
    may_claim: ClassVar[tuple[ClaimScope, ...]] = tuple(
        ClaimScope(
            one.resource,
            Level.NODE,
            part=one.part,
            audit_text=AuditText("systemConfig reconcile", one.message),
        )
        for one in (MIN_FREE, *PLAIN.values(), *FEATURES.values())
    )

    def init_flags(self, flags: FlagSet) -> None:
        self._interval = strategy_interval(flags)

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        self._states = states_informer
        self._refused: set[tuple[str, str]] = set()

    async def run(self, stop: Stop) -> None:
        async for _ in stop.every(self._interval.value):
            await self._round()

    async def _round(self) -> None:
        slo, node = self._states.node_slo(), self._states.node()
        memory = node.capacity.get("memory") if node else None
        if slo is None or memory is None:
            return
        pod_settings = list(desired_parameters(slo.system, Quantity.parse(memory).integer))
        self._report(set(rejected_settings(slo.system, pod_settings)))
        await self.claim_all(_claim(want) for want in pod_settings if is_usable(want))

    def _report(self, refused: set[tuple[str, str]]) -> None:
        """Log each value that cannot be used, once."""
        for resource, why in sorted(refused - self._refused):
            self.log.warning("value.refused", resource=resource, reason=why)
        self._refused = refused


def _claim(want: DesiredParameter) -> Claim:
    return Claim(
        target=Target.node(),
        resource=want.parameter.resource,
        part=want.parameter.part,
        value=want.value,
        reason=want.reason,
        inputs=want.inputs,
    )


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("SystemConfig", None, SystemConfig())
