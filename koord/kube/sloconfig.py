"""slo-controller-config on the API server, followed while it is needed."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from koord.kube.client import CONFIG_MAPS, ApiClient, field_selector
from koord.kube.reflector import Change, ChangeKind, Reflector, Watched
from koord.kube.transport import Object
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop

C = TypeVar("C")
Load = Callable[[Mapping[str, object] | None, C], tuple[C, tuple[InvalidObject, ...]]]
"""Takes the data of the ConfigMap, None where there is none, and the last good configuration."""

FOREVER = 3600.0  # seconds; what ends a wait is an event

log = get_logger("koord.sloconfig")


class ConfigSource(Generic[C]):
    """Keeps the configuration; changed is called when it does.

    current is None while it is not known. A key that is not understood keeps its last good value.
    Without a ConfigMap all keys have Koordinator's defaults. report gets a sentence for people
    whenever the problems of the ConfigMap change.
    """

    name = "slo config"

    def __init__(
        self, client: ApiClient, namespace: str, name: str, clock: Clock,
        changed: Callable[[], None], report: Callable[[str], None], *,
        load: Load[C], unset: C,
    ) -> None:  # fmt: skip
        """load reads the data; unset is what there is before anything was read."""
        self.current: C | None = None
        self._load = load
        self._client = client
        self._place = f"{namespace}/{name}"
        self._watched = Watched(
            name=self.name,
            path=CONFIG_MAPS.collection(namespace),
            query={"fieldSelector": field_selector({"metadata.name": name})},
            read=_data,
            on_change=self._see,
            component="manager-duties",
        )
        self._clock = clock
        self._changed = changed
        self._report = report
        self._last_good = unset
        self._problems: tuple[str, ...] = ()
        self._needed = False
        self._turned = asyncio.Event()  # needed has changed
        self._reflector: Reflector[object] | None = None  # None: not followed

    def need(self, needed: bool) -> None:
        """Follow the configuration from now on, or stop following it."""
        if needed != self._needed:
            self._needed = needed
            self._turned.set()

    def health(self) -> PartHealth:
        """Degraded while the server does not answer, or a key is not understood."""
        if self._reflector is None:
            return OK
        found = self._reflector.health()
        if not self._problems:
            return found
        reasons = (*self._problems, found.reason) if found.reason else self._problems
        return PartHealth(HealthStatus.DEGRADED, "; ".join(reasons), found.detail)

    async def run(self, stop: Stop) -> None:
        """Follow the ConfigMap, while it is needed, until stop."""
        while not stop.is_set():
            self._turned.clear()
            if self._needed:
                await self._follow(stop)
            else:
                await stop.sleep(FOREVER, wake=self._turned)

    async def _follow(self, stop: Stop) -> None:
        reflector, enough = Reflector(self._client, self._watched, self._clock), Stop(self._clock)
        self._reflector = reflector
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(reflector.run(enough), name=self.name)
                while not self._turned.is_set() and not stop.is_set():
                    await stop.sleep(FOREVER, wake=self._turned)
                enough.set()
        finally:
            self._reflector = self.current = None  # later versions are not seen

    def _see(self, change: Change[object]) -> None:
        if change.kind is ChangeKind.SYNCED and self._reflector and self._reflector.objects:
            return
        self._last_good, problems = self._read(change.new)
        self._note(tuple(f"{self._place}: {problem}" for problem in problems))
        self.current = self._last_good
        self._changed()

    def _read(self, data: object) -> tuple[C, tuple[InvalidObject, ...]]:
        """Return the configuration in a ConfigMap's data; None: there is no ConfigMap."""
        if data is not None and not isinstance(data, dict):
            return self._last_good, (InvalidObject("data", wanted="an object", found=data),)
        return self._load(data, self._last_good)

    def _note(self, problems: tuple[str, ...]) -> None:
        if problems and problems != self._problems:
            note = "their last good values stay in force"
            log.warning("config.partly_rejected", problems=problems, note=note)
            self._report(f"ConfigMap {'; '.join(problems)}; {note}")
        elif self._problems and not problems:
            log.info("config.recovered")
        self._problems = problems


def _data(item: Object) -> object:
    """The data of a ConfigMap; one without any is not the same as none."""
    found = item.get("data")
    return {} if found is None else found
