"""Switches on the scan for idle pages that the collector of cold memory reads.

Claims the scan period and the counting of children of kidled, of Anolis kernels; other kernels have
neither, and the plugin is idle there. What the node had before is restored when the gate is off.
"""

from typing import ClassVar

from koord.plugin import Stop
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    ExtensionPlugin,
    Level,
    MetricCache,
    PluginRegistry,
    States,
    Target,
    resources,
)

NAME = "ColdPageCollector"
INTERVAL = 30.0  # seconds between rounds
SCAN_PERIOD = 5  # seconds; kidled's longest idle times are 60 and more of these
_WANTED = {resources.KIDLED_PERIOD: SCAN_PERIOD, resources.KIDLED_USE_HIERARCHY: 1}


class ColdPageScan(ExtensionPlugin):
    """Keeps kidled on while its gate is."""

    gates = (NAME,)
    may_claim: ClassVar[tuple[ClaimScope, ...]] = tuple(
        ClaimScope(resource, Level.NODE) for resource in _WANTED
    )

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        self._supported: bool | None = None

    async def run(self, stop: Stop) -> None:
        async for _ in stop.every(INTERVAL):
            if await self._is_supported():
                await self.claim_all(
                    Claim(
                        target=Target.node(),
                        resource=resource,
                        value=value,
                        reason="memory that is not used for 300 s is counted as cold",
                    )
                    for resource, value in _WANTED.items()
                )

    async def _is_supported(self) -> bool:
        supported = all([await self.kernel.supports(resource) for resource in _WANTED])
        if self._supported is None and not supported:
            self.log.info("kernel.unsupported", needs=resources.KIDLED_PERIOD.needs)
        self._supported = supported
        return supported


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, None, ColdPageScan())
