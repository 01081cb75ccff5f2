"""The kubelet's CPU policy and allocations, from its configuration and its checkpoint on disk."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from koord.api.nodes.cpumanager import CpuManagerState
from koord.api.nodes.kubeletconfig import STATIC, KubeletConfig, parse_kubelet_config
from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koord.util.errors import KoordError, Unavailable
from koord.util.filewatch import FileWatch
from koordlet.host.errors import Unsupported, Vanished
from koordlet.host.topology.cpumanagerstate import cpu_manager_state_file, read_cpu_manager_state
from koordlet.rules.nodetopology import KubeletFacts

PERIOD = 60.0  # seconds between two requests; a configuration changes when the kubelet restarts
FIRST_PAUSE = 3.0  # seconds, when the kubelet does not answer

Ask = Callable[[], Awaitable[Mapping[str, object]]]
"""Return the kubelet's "kubeletconfig". Raises KoordError."""


class KubeletSource:
    """Keeps the latest configuration and checkpoint of the kubelet.

    Until the configuration is known, the checkpoint shows the policy. A kubelet with the static
    policy has a checkpoint from its start on: where there is none, the path is wrong. A checkpoint
    that vanishes stays in force.
    """

    def __init__(self, ask: Ask | None, kubelet_dir: Path, clock: Clock) -> None:
        """ask None: a flag forbids requests to the kubelet."""
        self._ask = ask
        self._watch = FileWatch(cpu_manager_state_file(kubelet_dir))
        self._clock = clock
        self._backoff = Backoff(FIRST_PAUSE, PERIOD)
        self._due = -math.inf  # monotonic
        self._config: KubeletConfig | None = None
        self._config_problem = ""
        self._state: CpuManagerState | None = None
        self._state_problem = ""

    async def refresh(self) -> None:
        """Read the checkpoint if it has changed, and the configuration when that is due."""
        if self._ask is None:
            return
        if self._watch.changed() or self._state is None:
            await asyncio.to_thread(self._read_state)
        if self._clock.monotonic() >= self._due:
            await self._read_config(self._ask)

    def facts(self) -> KubeletFacts:
        """Return the inputs of the topology.

        Raises:
            Unavailable: the CPUs that the kubelet has allocated are not known.
        """
        if self._ask is None:
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

    async def _read_config(self, ask: Ask) -> None:
        try:
            self._config = parse_kubelet_config(await ask())
        except KoordError as err:
            self._config_problem = str(err)
            self._due = self._clock.monotonic() + self._backoff.next()
            return
        self._config_problem = ""
        self._backoff.reset()
        self._due = self._clock.monotonic() + PERIOD
