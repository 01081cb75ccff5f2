"""Publish this node's topology when an input changes: machine, kubelet's CPU manager."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from koord.api.gojson import parse_json
from koord.api.kubelet import (
    STATIC,
    CpuManagerState,
    KubeletConfig,
    parse_cpu_manager_state,
    parse_kubelet_config,
)
from koord.api.machine import Machine
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, KoordError, Unavailable
from koord.util.filewatch import FileWatch
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord.util.timebudget import Backoff
from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.files import read_file
from koordlet.rules.node_topology import KubeletFacts, TopologyInputs, node_topology
from koordlet.statesinformer.informer import StatesInformer

MAX_STATE_BYTES = 1 << 20  # a thousand pods with a dozen containers each
_STATE_HINT = "is --var-lib-kubelet-dir right? It is read again when it changes"


def cpu_manager_state_file(kubelet: Path) -> Path:
    """Return where the checkpoint is, given the kubelet's directory."""
    return kubelet / "cpu_manager_state"


def read_cpu_manager_state(path: Path) -> CpuManagerState:
    """Return the file's contents; an empty one assigns no CPUs.

    Raises:
        KernelFileError: it cannot be read, or is no such checkpoint.
    """
    data = read_file(path, MAX_STATE_BYTES)
    if not data.strip():
        return CpuManagerState()
    try:
        return parse_cpu_manager_state(parse_json(data.decode(), path.name))
    except (InvalidObject, UnicodeDecodeError) as err:
        raise KernelFileError(
            path, wanted="the kubelet's CPU manager state", found=str(err), hint=_STATE_HINT
        ) from err


CONFIG_INTERVAL = (
    60.0  # seconds between two requests; a configuration changes when the kubelet restarts
)
INITIAL_BACKOFF = 3.0  # seconds, when the kubelet does not answer

RequestConfig = Callable[[], Awaitable[Mapping[str, object]]]
"""Return the kubelet's "kubeletconfig". Raises KoordError."""


class KubeletSource:
    """Keeps the latest configuration and checkpoint of the kubelet.

    Until the configuration is known, the checkpoint shows the policy. A kubelet with the static
    policy has a checkpoint from its start on: where there is none, the path is wrong. A checkpoint
    that vanishes stays in force.
    """

    def __init__(self, ask: RequestConfig | None, kubelet_dir: Path, clock: Clock) -> None:
        """ask None: a flag forbids requests to the kubelet."""
        self._request_config = ask
        self._watch = FileWatch(cpu_manager_state_file(kubelet_dir))
        self._clock = clock
        self._backoff = Backoff(INITIAL_BACKOFF, CONFIG_INTERVAL)
        self._due = -math.inf  # monotonic
        self._config: KubeletConfig | None = None
        self._config_problem = ""
        self._state: CpuManagerState | None = None
        self._state_problem = ""

    async def refresh(self) -> None:
        """Read the checkpoint if it has changed, and the configuration when that is due."""
        if self._request_config is None:
            return
        if self._watch.changed() or self._state is None:
            await asyncio.to_thread(self._read_state)
        if self._clock.monotonic() >= self._due:
            await self._read_config(self._request_config)

    def facts(self) -> KubeletFacts:
        """Return the inputs of the topology.

        Raises:
            Unavailable: the CPUs that the kubelet has allocated are not known.
        """
        if self._request_config is None:
            return KubeletFacts(ignored=True)
        if self._is_without_allocations:
            return KubeletFacts(self._config)
        if self._state is None:
            raise Unavailable("; ".join(filter(None, (self._config_problem, self._no_state()))))
        if self._config is None and not self._state.policy:
            raise Unavailable(
                f"{self._config_problem}; nor does {self._watch.path} say which policy it follows"
            )
        return KubeletFacts(self._config, self._state)

    def problems(self) -> tuple[str, ...]:
        """Problems that still allow a topology."""
        found = []
        if self._config_problem:
            instead = "its last answer" if self._config else "its checkpoint"
            found.append(f"{self._config_problem}; {instead} is in force")
        if self._state_problem and not self._is_without_allocations:
            found.append(f"{self._state_problem}; its last good content is in force")
        return tuple(found)

    @property
    def _is_without_allocations(self) -> bool:
        return self._config is not None and self._config.cpu_manager_policy != STATIC

    def _no_state(self) -> str:
        return self._state_problem or (
            f"{self._watch.path}: wanted to see which CPUs the kubelet has given to pods, found no "
            "file; mount the kubelet's directory (see --var-lib-kubelet-dir), or do without it by "
            "--disable-query-kubelet-config"
        )

    def _read_state(self) -> None:
        try:
            state = read_cpu_manager_state(self._watch.path)
        except (Unsupported, Vanished):  # there is none
            if self._state is None:
                self._state_problem = ""
            return
        except KoordError as err:
            self._state_problem = str(err)
            return
        self._state_problem = ""
        if self._state is not None and self._state.policy != state.policy:
            self._due = -math.inf  # it has been started with another configuration
        self._state = state

    async def _read_config(self, ask: RequestConfig) -> None:
        try:
            self._config = parse_kubelet_config(await ask())
        except KoordError as err:
            self._config_problem = str(err)
            self._due = self._clock.monotonic() + self._backoff.next()
            return
        self._config_problem = ""
        self._backoff.reset()
        self._due = self._clock.monotonic() + CONFIG_INTERVAL


_SYNC_TIMEOUT = 60.0  # seconds after the start in which it is normal not to know everything

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
            self._refresh()
            await stop.sleep(self._interval)

    def health(self) -> PartHealth:
        """Degraded while the topology is not known, not up to date, or lacks something."""
        reasons = (
            [self._obstacle] if self._obstacle else [*self._problems, *self._kubelet.problems()]
        )
        return PartHealth(HealthStatus.DEGRADED, "; ".join(reasons)) if reasons else OK

    def _refresh(self) -> None:
        try:
            inputs = self._gather()
            if inputs != self._inputs:
                topology, problems = node_topology(inputs)
                self._inputs, self._problems = inputs, tuple(map(str, problems))
                self._states.set_node_topology(topology)
        except KoordError as err:
            self._obstacle = str(err)
            if self._inputs is not None or self._clock.monotonic() - self._begun > _SYNC_TIMEOUT:
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
