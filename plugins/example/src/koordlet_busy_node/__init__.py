"""Names the pods that use most CPU while the node is busy."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from koord.api.quantity import Quantity
from koord.plugin import OptionError, Stop
from koordlet.plugin import Client, ExtensionPlugin, FlagSet, MetricCache, States, kinds

INTERVAL = 10.0  # seconds between rounds


@dataclass(frozen=True, kw_only=True, slots=True)
class BusyOptions:
    """Limits from which a node counts as busy."""

    share: float = 0.8  # of the node's CPU
    window: float = 60.0  # seconds over which usage is averaged
    top: int = 3  # pods to name

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise OptionError("--busy-node-share", self.share, "use a share above 0, up to 1")
        if not 1 <= self.top <= 20:
            raise OptionError("--busy-node-top", self.top, "use 1 to 20 pods")


def busiest(cores: Mapping[str, float], count: int) -> list[tuple[str, float]]:
    """Return the pods that use most CPU, the first one most. Pure."""
    return heapq.nlargest(count, cores.items(), key=lambda item: (item[1], item[0]))


class BusyNode(ExtensionPlugin):
    """Logs when the pods of the node begin and cease to use most of its CPU."""

    def init_flags(self, flags: FlagSet) -> None:
        self._share = flags.float("busy-node-share", 0.8, "Share of the CPU from which it is busy")
        self._window = flags.duration("busy-node-window", 60.0, "Time to average usage over")
        self._top = flags.int("busy-node-top", 3, "How many pods to name")

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        self._cache = metric_cache
        self._states = states_informer
        self._options = BusyOptions(
            share=self._share.value, window=self._window.value, top=self._top.value
        )
        self._episodes = self.metrics.counter("episodes_total", "How often the node became busy.")
        self._busy = self.metrics.gauge("busy", "1 while the node is busy.")

    async def run(self, stop: Stop) -> None:
        was_busy = False
        async for _ in stop.every(INTERVAL):
            pods = self._cores_by_pod()
            is_busy = sum(pods.values()) >= self._options.share * self._capacity()
            self._busy.set(is_busy)
            if is_busy and not was_busy:
                self._episodes.inc()
                top = busiest(pods, self._options.top)
                self.log.info("node.busy", pods={self._name(uid): round(c, 2) for uid, c in top})
            elif was_busy and not is_busy:
                self.log.info("node.calm", cores=round(sum(pods.values()), 2))
            was_busy = is_busy

    def _cores_by_pod(self) -> dict[str, float]:
        usage = self._cache.aggregate_all(kinds.POD_CPU_USAGE, self._options.window)
        return {uid: aggregate.avg() for (uid,), aggregate in usage.items()}

    def _capacity(self) -> float:
        """Cores of this node; unknown means that it is never busy."""
        node = self._states.node()
        cpu = node.capacity.get("cpu") if node else None
        return Quantity.parse(cpu).milli / 1000 if cpu else float("inf")

    def _name(self, uid: str) -> str:
        meta = self._states.pod(uid)
        return f"{meta.pod.namespace}/{meta.pod.name}" if meta else uid
