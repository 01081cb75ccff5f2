"""Publishes this node's topology, made anew whenever one of its inputs has changed."""

from collections.abc import Callable

from koord.api.nodes.machine import Machine
from koord.util.clock import Clock
from koord.util.errors import KoordError, Unavailable
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koordlet.rules.nodetopology import TopologyInputs, node_topology
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.kubeletfacts import KubeletSource

_PATIENCE = 60.0  # seconds after the start in which it is normal not to know everything

log = get_logger("koordlet.statesinformer")


class TopologySource:
    """Makes the topology from the machine, the node, its pods and its kubelet.

    While an input is missing or malformed, the last topology stays: too many shared CPUs would
    hurt pods that have CPUs of their own.
    """

    name = "node topology"

    def __init__(
        self,
        states: StatesInformer,
        clock: Clock,
        *,
        machine: Callable[[], Machine | None],
        kubelet: KubeletSource,
        huge_pages: Callable[[], bool],
        interval: float,
    ) -> None:
        """machine: None until it was read. interval: seconds between two looks at the inputs."""
        self._states = states
        self._clock = clock
        self._machine = machine
        self._kubelet = kubelet
        self._huge_pages = huge_pages
        self._interval = interval
        self._begun = clock.monotonic()
        self._inputs: TopologyInputs | None = None  # of the present topology
        self._obstacle = ""  # why there is no new topology
        self._problems: tuple[str, ...] = ()  # what is left out of the present one
        self._trouble = LogState(log)

    async def run(self, stop: Stop) -> None:
        """Publish until stop."""
        while not stop.is_set():
            if self._states.has_synced():  # the Node says where the kubelet is
                await self._kubelet.refresh()
            self._look()
            await stop.sleep(self._interval)

    def health(self) -> PartHealth:
        """Degraded while the topology is not known, not up to date, or lacks something."""
        reasons = (
            [self._obstacle] if self._obstacle else [*self._problems, *self._kubelet.problems()]
        )
        return PartHealth(Status.DEGRADED, "; ".join(reasons)) if reasons else OK

    def _look(self) -> None:
        try:
            inputs = self._gather()
            if inputs != self._inputs:
                topology, problems = node_topology(inputs)
                self._inputs, self._problems = inputs, tuple(map(str, problems))
                self._states.set_node_topology(topology)
        except KoordError as err:
            self._obstacle = str(err)
            if self._inputs is not None or self._clock.monotonic() - self._begun > _PATIENCE:
                self._trouble.failed("topology.unknown", error=self._obstacle)
        else:
            self._obstacle = ""
            self._trouble.ended("topology.known")

    def _gather(self) -> TopologyInputs:
        node, machine = self._states.node(), self._machine()
        if node is None or not self._states.has_synced():
            raise Unavailable("wanted this node and its pods, found them not known yet")
        if machine is None:
            raise Unavailable("wanted the CPUs and NUMA nodes of this machine, found them not read")
        return TopologyInputs(
            machine,
            node,
            tuple(meta.pod for meta in self._states.pods()),
            self._kubelet.facts(),
            self._huge_pages(),
        )
