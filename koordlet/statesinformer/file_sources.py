"""Node, NodeSLO from files, or a Node made from this host; their lenient reading and health."""

import asyncio
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from koord.api.node import Node, parse_node
from koord.api.nodeslo import NodeSLO, merge_nodeslo
from koord.util.clock import Clock
from koord.util.documents import decode
from koord.util.errors import InvalidObject
from koord.util.filewatch import FileReadError, FileWatch
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koordlet.host.errors import KernelFileError
from koordlet.host.files import parse_file
from koordlet.host.procfiles import parse_meminfo, parse_per_cpu_ticks
from koordlet.statesinformer.informer import StatesInformer

SILENCE_TIMEOUT = 5.0  # seconds without a finished round after which a source is called stuck


class SourceHealth:
    """The problems of a source, logged when they start, change and end.

    A source with problems keeps what it published, so it is degraded. A source that finishes no
    round any more, for example because a read hangs, is unhealthy.
    """

    def __init__(self, source: str, clock: Clock, *, silence: float = SILENCE_TIMEOUT) -> None:
        self._clock = clock
        self._silence = silence
        self._log = get_logger("koordlet.statesinformer", source=source)
        self._problems: tuple[str, ...] = ()
        self._finished_at: float | None = None  # monotonic; None: has not begun

    def begin(self) -> None:
        """Record that the source has started."""
        self._finished_at = self._clock.monotonic()

    def finish(self, problems: tuple[str, ...] = ()) -> None:
        """Record the end of a round; problems are sentences for people."""
        self._finished_at = self._clock.monotonic()
        if problems == self._problems:
            return
        self._problems = problems
        if problems:
            self._log.warning("source.degraded", problems=list(problems))
        else:
            self._log.info("source.recovered")

    def health(self) -> PartHealth:
        if self._finished_at is None:
            return PartHealth(HealthStatus.UNHEALTHY, "has not started")
        silent = self._clock.monotonic() - self._finished_at
        if silent > self._silence:
            return PartHealth(HealthStatus.UNHEALTHY, f"no round finished for {silent:.0f} s")
        if self._problems:
            return PartHealth(HealthStatus.DEGRADED, "; ".join(self._problems))
        return OK


T = TypeVar("T")

MAX_FILE_BYTES = 16 << 20  # a PodList of 1000 pods has half of it


class ObjectFile(Generic[T]):
    """Reads a file of JSON or YAML whenever it has changed. Not thread-safe.

    problem says why the file cannot be used; empty: it can.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[object], T],
        *,
        max_bytes: int = MAX_FILE_BYTES,
        half_characters: bool = False,
    ) -> None:
        """parse raises InvalidObject. half_characters: parse itself rejects lone surrogates."""
        self._path = path
        self._parse = parse
        self._max_bytes = max_bytes
        self._half_characters = half_characters
        self._watch = FileWatch(path)
        self._due = False
        self._was_read = False
        self.problem = ""

    def poll(self) -> T | None:
        """Return the object if the file holds a new one; None: nothing new. Blocks.

        A changed file is read by the first poll that finds it unchanged since the poll before: half
        of a list may be a valid list. Only the first reading does not wait.
        """
        if not self._path.exists():
            self.problem = f"{self._path}: wanted a file, found nothing; write it"
            self._watch.again()
            return None
        if self._watch.changed():
            self._due = True
            if self._was_read:
                return None
        return self._read() if self._due else None

    def _read(self) -> T | None:
        self._due = False
        try:
            data = self._watch.read(self._max_bytes)
            where, half = str(self._path), self._half_characters
            found = self._parse(decode(data, where, half_characters=half))
        except FileReadError as err:
            self.problem = str(err)
            self._due = self._may_become_readable()
            return None
        except InvalidObject as err:
            text = str(err)
            where = str(self._path)
            self.problem = text if text.startswith(where) else f"{where}: {text}"
            return None
        finally:
            self._was_read = True
        self.problem = ""
        return found

    def _may_become_readable(self) -> bool:
        """Whether to try again: permissions may change without a change of the file's times."""
        try:
            return self._path.stat().st_size <= self._max_bytes
        except OSError:
            return True


@dataclass(frozen=True, slots=True)
class ObjectReading(Generic[T]):
    """The value read from one version of an object, and the fields that were not understood."""

    value: T
    problems: tuple[InvalidObject, ...] = ()


def read_node_slo(obj: object, informer: StatesInformer) -> ObjectReading[NodeSLO]:
    """Return the NodeSLO of an object as JSON, merged with the defaults.

    A section that is not understood keeps its last good value: the one in force.

    Raises:
        InvalidObject: the object or its spec is no JSON object at all.
    """
    return ObjectReading(*merge_nodeslo(obj, informer.node_slo() or NodeSLO()))


FILE_INTERVAL = 0.5  # seconds between two looks at the file
MAX_OBJECT_BYTES = 1 << 20


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
        self._file = ObjectFile(path, parse, max_bytes=MAX_OBJECT_BYTES)
        self._publish = publish
        self._condition = SourceHealth(name, clock)

    async def run(self, stop: Stop) -> None:
        """Watch the file until stop."""
        self._condition.begin()
        async for _ in stop.every(FILE_INTERVAL):
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


HOST_NODE_INTERVAL = 60.0  # seconds between two looks: CPUs and memory can be plugged in

_GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class HostNodeSource:
    """Publishes a Node made from /proc, with the labels that every kubelet sets.

    A resource that cannot be read is absent from its capacity. All capacity is allocatable.
    """

    name = "node"

    def __init__(self, node_name: str, proc: Path, informer: StatesInformer, clock: Clock) -> None:
        self._node_name = node_name
        self._proc = proc
        self._informer = informer
        self._condition = SourceHealth(self.name, clock, silence=3 * HOST_NODE_INTERVAL)
        self._problems: list[str] = []

    async def run(self, stop: Stop) -> None:
        """Look at the host until stop."""
        self._condition.begin()
        async for _ in stop.every(HOST_NODE_INTERVAL):
            self._informer.set_node(await asyncio.to_thread(self._refresh))
            self._condition.finish(tuple(self._problems))

    def health(self) -> PartHealth:
        """Degraded while CPUs or memory cannot be read."""
        return self._condition.health()

    def _refresh(self) -> Node:
        self._problems = []
        capacity: dict[str, str] = {}
        cpus = self._read("stat", parse_per_cpu_ticks)
        if cpus is not None:
            capacity["cpu"] = str(len(cpus))
        memory = self._read("meminfo", parse_meminfo)
        if memory is not None:
            capacity["memory"] = f"{memory.total // 1024}Ki"
        return Node(self._node_name, self._labels(), {}, capacity, capacity)

    def _labels(self) -> dict[str, str]:
        machine = platform.machine()
        return {
            "kubernetes.io/arch": _GO_ARCHITECTURES.get(machine, machine),
            "kubernetes.io/hostname": self._node_name,
            "kubernetes.io/os": "linux",
        }

    def _read(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        try:
            return parse_file(self._proc / name, parse)
        except KernelFileError as err:
            self._problems.append(str(err))
            return None
