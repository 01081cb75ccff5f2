"""A small cgroup tree on disk that accepts what a kernel does, and a writer of it that can die."""

import shutil
from collections.abc import Callable
from pathlib import Path

from koord.api.machine import format_cpulist
from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claims.claim import RELEASE, ApplyResult, DesiredValue, Key, Target
from koordlet.executor.journal import Journal, ignore_step
from koordlet.executor.kernel.plan import OnForeignChange
from koordlet.executor.kernel.values import KernelValues
from koordlet.executor.kernel.writer import Writer
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.paths import HostPaths
from koordlet.host.resource import Level, Resource
from koordlet.host.resources import CPU_BURST, CPU_IDLE, CPU_QUOTA, CPU_SHARES, CPUSET_CPUS_WANTED
from koordlet.plugin.testing import SimulatedClock
from tests.support.node.kernel_model import DEFAULT_SHARES, FIELDS, MOST, KernelModel, ModelGroup

BOOT = "da8d657c-8fa2-46c4-9aeb-64c0a40defa8"
PLACES = ("be", "be/pod1", "be/pod1/c1", "be/pod2")


class Died(BaseException):
    """kill -9."""


class Mortal:
    """A step hook that lets the process die at a step; 0: never."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.steps: list[str] = []

    def __call__(self, name: str) -> None:
        self.steps.append(name)
        if len(self.steps) == self.at:
            raise Died(name)


class StrictValues(KernelValues):
    """Kernel values that are refused as a kernel would."""

    def __init__(self, tree: "ModelTree", host: Host, step: Callable[[str], None]) -> None:
        super().__init__(host, step)
        self.tree = tree

    def _write(self, place, key, inode, content):
        text = content.decode().removesuffix("\n").split(" ")[0]
        if key.resource in FIELDS:
            self.tree.set(key.resource, key.target.place, text)
        super()._write(place, key, inode, content)
        if key.resource is CPU_IDLE:
            self.tree.dump(key.target.place, CPU_SHARES)


class ModelTree:
    """Groups of one cgroup version with their files, and the daemon's run directory."""

    def __init__(self, root: Path, version: int, *, fresh: bool = True) -> None:
        """fresh False: go on with what another process left in the files."""
        self.root, self.version = root, version
        self.paths = HostPaths.below(root)
        self.run_dir = root / "koordlet"
        self.clock = SimulatedClock()
        self.policy = OnForeignChange.RETAKE
        self.kernel = KernelModel(version, {})
        self._journal: Journal | None = None
        if fresh:
            self.reset()
        else:
            self._load()

    def reset(self) -> None:
        """As after a boot."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.run_dir.mkdir(parents=True)
        self.kernel.groups.clear()
        if self.version == 2:
            self.paths.cgroup.mkdir()
            (self.paths.cgroup / "cgroup.controllers").write_text("cpuset cpu memory\n")
        for place in PLACES:
            self.add(place)

    def add(self, place: str) -> None:
        """A group is born; on v1 the runtime copies the CPUs of the parent."""
        above = self.kernel.above(place)
        cpus = self.kernel.groups[above[0]].cpus if above else MOST
        self.kernel.groups[place] = ModelGroup(
            shares=DEFAULT_SHARES[self.version], cpus=cpus if self.version == 1 else frozenset()
        )
        for directory in self._directories(place):
            directory.mkdir(parents=True)
        self.dump(place)

    def remove(self, place: str) -> None:
        """A group ends. The inode numbers of a kernel are never used again."""
        del self.kernel.groups[place]
        for directory in self._directories(place):
            directory.rename(self.root / f"ended-{len(list(self.root.iterdir()))}")

    def set(self, resource: Resource, place: str, text: str) -> None:
        """Write as the kernel sees it. Raises Refused."""
        shown = f"{text} 100000\n" if resource is CPU_QUOTA and self.version == 2 else f"{text}\n"
        file = resource.files[self.version]
        value = int(text) if resource is CPU_SHARES else file.parse(shown.encode())
        self.kernel.set(resource, place, value)

    def foreign(self, resource: Resource, place: str, text: str) -> None:
        """Write as another agent does. Raises Refused."""
        self.set(resource, place, text)
        self.dump(place, resource, CPU_SHARES)

    def read(self, resource: Resource, place: str) -> str:
        with open(self._file(resource, place)) as file:
            return file.read().removesuffix("\n").removesuffix(" 100000")

    def snapshot(self) -> dict[tuple[str, str], str]:
        """Every value of every group."""
        return {
            (place, resource.name): self.read(resource, place)
            for place in self.kernel.groups
            for resource in FIELDS
        }

    def dump(self, place: str, *resources: Resource) -> None:
        """Have the files of a group, all or some, say what the model does."""
        for resource in resources or FIELDS:
            value = getattr(self.kernel.groups[place], FIELDS[resource])
            text = format_cpulist(value) if isinstance(value, frozenset) else str(value)
            if resource is CPU_QUOTA and self.version == 2:
                text = f"{'max' if value == -1 else value} 100000"
            with open(self._file(resource, place), "w") as file:
                file.write(f"{text}\n")

    def writer(self, step: Callable[[str], None] = ignore_step) -> Writer:
        """The writer of a process that starts now; the one before has ended."""
        if self._journal is not None:
            self._journal.close()
        self._journal = Journal(OwnedDirectory.open(self.run_dir), BOOT, step=step)
        host = Host(self.paths, Descriptors(0))
        return Writer(
            host,
            self._journal,
            self.clock,
            policy=lambda: self.policy,
            values=StrictValues(self, host, step),
        )

    def restore(self, step: Callable[[str], None] = ignore_step) -> list[ApplyResult]:
        """Start after a crash, and put everything back."""
        writer = self.writer(step)
        return writer.restore(writer.unclaimed(), at_once=True)

    def _load(self) -> None:
        top = self._directories("be")[0]
        for directory in [top, *sorted(path for path in top.rglob("*") if path.is_dir())]:
            place = str(directory.relative_to(top.parent))
            group = self.kernel.groups[place] = ModelGroup()
            for resource, field in FIELDS.items():
                with open(self._file(resource, place), "rb") as file:
                    text = file.read()
                parse = int if resource is CPU_SHARES else resource.files[self.version].parse
                setattr(group, field, parse(text))

    def _file(self, resource: Resource, place: str) -> str:
        file = resource.files[self.version]
        controller = f"/{file.controller}" if self.version == 1 else ""
        return f"{self.paths.cgroup}{controller}/{place}/{file.name}"

    def _directories(self, place: str) -> list[Path]:
        names = ("cpu", "cpuset") if self.version == 1 else ("",)
        return [self.paths.cgroup / name / place for name in names]


def key(resource: Resource, place: str) -> Key:
    return Key(Target(Level.POD, place), resource)


def desired(resource: Resource, place: str, value, original=None) -> DesiredValue:
    return DesiredValue(key(resource, place), value, original, ("Squeeze",))


def release(resource: Resource, place: str) -> DesiredValue:
    return DesiredValue(key(resource, place), RELEASE)


QUOTA, BURST, IDLE, SHARES, CPUS = (
    CPU_QUOTA,
    CPU_BURST,
    CPU_IDLE,
    CPU_SHARES,
    CPUSET_CPUS_WANTED,
)
