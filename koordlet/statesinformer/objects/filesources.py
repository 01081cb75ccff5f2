"""Node and NodeSLO from files: --node-file and --nodeslo-file."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from koord.api.nodes.node import Node, parse_node
from koord.api.slo.nodeslo import NodeSLO
from koord.util.clock import Clock
from koord.util.health import PartHealth
from koord.util.stop import Stop
from koordlet.statesinformer.condition import Condition
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.objects.objectfile import ObjectFile
from koordlet.statesinformer.objects.reading import ObjectReading, read_node_slo

T = TypeVar("T")

INTERVAL = 0.5  # seconds between two looks at the file
MAX_BYTES = 1 << 20


class FileSource(Generic[T]):
    """Publishes the object in a file, again whenever it changes.

    While the file is missing or cannot be used, the last published object stays in force. parse
    runs in a worker thread.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        parse: Callable[[object], ObjectReading[T]],
        publish: Callable[[T], None],
        clock: Clock,
    ) -> None:
        self.name = name
        self._path = path
        self._problems: tuple[str, ...] = ()  # of the last published object
        self._file = ObjectFile(path, parse, max_bytes=MAX_BYTES)
        self._publish = publish
        self._condition = Condition(name, clock)

    async def run(self, stop: Stop) -> None:
        """Watch the file until stop."""
        self._condition.begin()
        async for _ in stop.every(INTERVAL):
            found = await asyncio.to_thread(self._file.poll)
            if found is not None:
                self._problems = tuple(f"{self._path}: {problem}" for problem in found.problems)
                self._publish(found.value)
            self._condition.finish((self._file.problem,) if self._file.problem else self._problems)

    def health(self) -> PartHealth:
        """Degraded while the file cannot be used whole; unhealthy when reading it never returns."""
        return self._condition.health()


def node_file(path: Path, informer: StatesInformer, clock: Clock) -> FileSource[Node]:
    """Return the source that publishes the v1 Node in a file."""
    return FileSource("node", path, _read_node, informer.set_node, clock)


def node_slo_file(path: Path, informer: StatesInformer, clock: Clock) -> FileSource[NodeSLO]:
    """Return the source that publishes the NodeSLO in a file, merged as one of the cluster."""
    return FileSource(
        "nodeslo", path, lambda obj: read_node_slo(obj, informer), informer.set_node_slo, clock
    )


def _read_node(obj: object) -> ObjectReading[Node]:
    return ObjectReading(parse_node(obj))
