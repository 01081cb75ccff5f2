"""Read the values of the resource table from this host, whatever its cgroup version.

A BoundFile is one kernel file of one group: its path, how it is read, how its text is parsed.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.cgroups.tree import (
    V1,
    V2,
    CgroupFs,
    KubeRoots,
    driver_of_kubelet,
    subgroups,
)
from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.files import Descriptors
from koordlet.host.kernelfile import KernelFile
from koordlet.host.objects import ObjectReader, make_reader
from koordlet.host.paths import HostPaths
from koordlet.host.resource import File, ObjectKind, Resource, Root, Support
from koordlet.host.resources import CPU_BVT, MEMORY_WMARK_RATIO

T = TypeVar("T")


class BoundFile(Generic[T]):
    """A resource, bound to the file that this host has for one group.

    A text that is the same as the last one is not parsed again, so two readings may share one
    value: it must not be changed. For the thread that reads the host.
    """

    __slots__ = ("_explain", "_known", "_parse", "_read", "_value", "group", "path", "resource")

    def __init__(
        self,
        resource: Resource[T],
        group: str,
        path: str,
        file: File[T],
        read: Callable[[], bytes],
        explain: Callable[["BoundFile[Any]", KernelFileError], KernelFileError],
    ) -> None:
        """explain returns what it means for the group that the file is missing."""
        self.resource = resource
        self.group = group
        self.path = path
        self._parse = file.parse
        self._read = read
        self._explain = explain
        self._known: bytes | None = None  # the text that was parsed last
        self._value: T

    def read(self) -> T:
        """Return the value, read now.

        Raises:
            Unsupported: this kernel or cgroup version does not have it.
            Vanished: the group or process has ended.
            KernelFileError: it cannot be read or is malformed.
        """
        return self.parse(self.text())

    def text(self) -> bytes:
        """Return the text now in the file. Raises what read does, but for malformed text."""
        try:
            return self._read()
        except (Unsupported, Vanished) as err:
            raise self._explain(self, err) from err

    def parse(self, text: bytes) -> T:
        """Return the value in a text of the file.

        Raises:
            KernelFileError: the text is not what the kernel writes.
        """
        if text == self._known:
            return self._value
        try:
            self._value = self._parse(text)
        except ValueError as err:
            self._known = None
            raise KernelFileError(
                self.path,
                wanted=f"{self.resource.name} ({self.resource.unit})",
                found=f"unusable text: {err}",
                hint="it is tried again; if it stays, report it with the kernel's version",
            ) from err
        self._known = text
        return self._value


RECHECK_SECONDS = 30.0  # after which "not supported" is looked at again


class _Place(NamedTuple):
    """The place of a resource on this host: the path is prefix + group + suffix."""

    version: int
    file: File[Any]
    prefix: str
    suffix: str
    root: str  # path for the group ""


class Host:
    """The kernel of this host as typed values.

    A group is the path of a cgroup without leading slash, "" for the root group; for files of
    processes or NUMA nodes it is the pid or the node id. Reads belong to one thread, the one that
    owns the descriptors; `path`, `version` and `supports` may be used by any.
    """

    def __init__(
        self,
        paths: HostPaths,
        descriptors: Descriptors | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        objects: Mapping[ObjectKind, ObjectReader] | None = None,
    ) -> None:
        """objects: the readers of those kinds, in place of the default ones."""
        self.paths = paths
        self._objects = dict(objects or {})
        self.descriptors = descriptors or Descriptors()
        self._monotonic = monotonic
        self._places: dict[Resource[Any], _Place] = {}
        self._supported: dict[Resource[Any], tuple[bool, float]] = {}
        self.detect()

    def detect(self) -> None:
        """Look again for cgroup versions and the kubepods cgroup."""
        self.cgroups = CgroupFs(self.paths.cgroup)
        self.layouts = self._find_layouts()  # of all kubepods cgroups; the likeliest first
        self._places.clear()
        self._supported.clear()

    @property
    def layout(self) -> Layout:
        """Names of pods' cgroups; a guess from the kubelet, or systemd's, while there are none."""
        return self.layouts[0]

    def read(self, resource: Resource[T], group: str = "") -> T:
        """Return a value, read and parsed now.

        Raises:
            Unsupported: this kernel or cgroup version does not have it.
            Vanished: the group or process has ended.
            KernelFileError: it cannot be read or is malformed.
        """
        return self.bind(resource, group).read()

    def bind(
        self, resource: Resource[T], group: str = "", *, if_supported: bool = False
    ) -> BoundFile[T]:
        """Return the file of a resource for a group, to be read now or again and again.

        It stays what it is when detect finds another place. if_supported: do not even try to open
        a file that all groups lack, as opening it for hundreds of groups is dear.

        Raises:
            Unsupported: this cgroup version has no such file.
        """
        place = self._places.get(resource) or self._find(resource)
        file, path = place.file, place.prefix + group + place.suffix if group else place.root
        read: Callable[[], bytes]
        if isinstance(file.root, ObjectKind):
            read = partial(self._reader(file.root).read, group)
            return BoundFile(resource, group, path, file, read, self._absent)
        held = self.descriptors.file(path) if file.hold else None
        read = held.read if held else partial(self.descriptors.read_once, path)
        if if_supported and file.support is Support.KUBEPODS:
            read = partial(self._read_if_supported, resource, group, path, read)
        return BoundFile(resource, group, path, file, read, self._absent)

    def path(self, resource: Resource[Any], group: str = "") -> str:
        """Return the path of a resource's file, whether or not it is there.

        Raises:
            Unsupported: this cgroup version has no such file.
        """
        place = self._places.get(resource) or self._find(resource)
        if isinstance(place.file.root, ObjectKind):
            return self._reader(place.file.root).path(group)
        return place.prefix + group + place.suffix if group else place.root

    def version(self, resource: Resource[Any]) -> int:
        """Return which of resource.files this host uses. Raises Unsupported."""
        return (self._places.get(resource) or self._find(resource)).version

    def file(self, resource: Resource[T]) -> File[T]:
        """Return the file this host uses. Raises Unsupported."""
        return (self._places.get(resource) or self._find(resource)).file

    def supports(self, resource: Resource[Any], group: str = "") -> bool:
        """Return whether a group of this host should have the file, by the rule of its row."""
        try:
            support = self.file(resource).support
        except Unsupported:
            return False
        if support is Support.PER_GROUP:
            return os.path.exists(self.path(resource, group))
        return support is Support.ALWAYS or self._supports_anywhere(resource, group)

    def groups_below(self, resource: Resource[Any], group: str) -> list[str]:
        """Return the cgroups right below one, sorted, in the hierarchy that has the resource.

        Raises:
            Unsupported: this cgroup version has no such file.
        """
        directory = self.path(resource, group).rpartition("/")[0]
        return [f"{group}/{name}" if group else name for name in subgroups(Path(directory))]

    def forget(self, group: str) -> None:
        """Close the held files of a cgroup that has ended, and of all below it."""
        hierarchies = self.cgroups.hierarchies() or [self.paths.cgroup]
        self.descriptors.forget(*(f"{hierarchy}/{group}/" for hierarchy in hierarchies))

    def is_anolis(self) -> bool:
        """Return whether this is an Anolis or Alibaba Cloud kernel, which has files of its own."""
        if os.path.exists(self.path(CPU_BVT)):
            return True
        file = self.file(MEMORY_WMARK_RATIO)
        memory = self.cgroups.hierarchy(file.controller, self.version(MEMORY_WMARK_RATIO))
        return next(memory.glob(f"*/{file.name}"), None) is not None

    def _supports_anywhere(self, resource: Resource[Any], group: str) -> bool:
        """Whether the kubepods (or root) group has the file; a "no" is not believed for long."""
        known, at = self._supported.get(resource, (False, -RECHECK_SECONDS))
        now = self._monotonic()
        if known or now - at < RECHECK_SECONDS:
            return known
        known = os.path.exists(self.path(resource, self._reference(resource, group)))
        self._supported[resource] = (known, now)
        return known

    def _reference(self, resource: Resource[Any], group: str) -> str:
        """The group whose files show what all groups have."""
        if self.file(resource).support is Support.ROOT:
            return ""
        kubepods = self.layout.root
        return kubepods if os.path.isdir(os.path.dirname(self.path(resource, kubepods))) else group

    def _read_if_supported(
        self, resource: Resource[Any], group: str, path: str, read: Callable[[], bytes]
    ) -> bytes:
        if not self.supports(resource, group):
            raise Unsupported.here(path, "no such file")
        return read()

    def _reader(self, kind: ObjectKind) -> ObjectReader:
        """Return the reader of the objects of a kind."""
        reader = self._objects.get(kind)
        if reader is None:
            reader = self._objects[kind] = make_reader(kind, self.paths)
        return reader

    def _absent(self, bound: BoundFile[Any], err: KernelFileError) -> KernelFileError:
        """The error for a missing file: it vanished only if its group or process has ended."""
        if isinstance(err, Vanished) and self._has_ended(bound.resource, bound.group):
            return err
        return Unsupported.here(err.path, err.found, bound.resource.needs)

    def _has_ended(self, resource: Resource[Any], group: str) -> bool:
        if self.file(resource).root is not Root.CGROUP:
            return bool(group)
        cpu = self.cgroups.hierarchy("cpu", self.cgroups.version("cpu"))
        return not (cpu / group).is_dir()

    def _find(self, resource: Resource[Any]) -> _Place:
        version = self._version(resource)
        file = resource.files.get(version)
        if file is None:
            found = f"cgroup v{version}, which has none"
            raise Unsupported.here(f"{self.paths.cgroup}/{resource.name}", found, resource.needs)
        named = self._named(file, version) if file.others else file
        prefix, suffix, root = self._parts(named or file, version)
        place = _Place(version, named or file, prefix, suffix, root)
        if named is not None and not isinstance(resource, KernelFile):  # equal ones may differ
            self._places[resource] = place
        return place

    def _named(self, file: File[T], version: int) -> File[T] | None:
        """The file under the name that this kernel has for it; None: there is none yet."""
        hierarchy = self.cgroups.hierarchy(file.controller, version)
        group = hierarchy / self.layout.root
        if not group.is_dir():  # the root group lacks many of the files that others have
            group = next((hierarchy / name for name in subgroups(hierarchy)), hierarchy)
        names = (name for name in (file.name, *file.others) if (group / name).exists())
        found = next(names, None)
        return None if found is None else replace(file, name=found)

    def _parts(self, file: File[Any], version: int) -> tuple[str, str, str]:
        if file.root is Root.CGROUP:
            hierarchy = self.cgroups.hierarchy(file.controller, version)
            return f"{hierarchy}/", f"/{file.name}", f"{hierarchy}/{file.name}"
        roots: dict[Root | ObjectKind, Path] = {
            Root.PROC: self.paths.proc,
            Root.RESCTRL: self.paths.resctrl,
        }
        root = roots.get(file.root, self.paths.sys)
        before, _, after = file.name.partition("{}")
        whole = f"{before}{after}".removeprefix("/")
        return f"{root}/{before}", after, f"{root}/{whole}"

    def _version(self, resource: Resource[Any]) -> int:
        v1, v2 = resource.files.get(V1), resource.files.get(V2)
        if v1 is None or v2 is None:
            file = v1 or v2
            return self.cgroups.version(file.controller) if file else V1
        if v1.root is not Root.CGROUP:
            return V1
        version = self.cgroups.version(v1.controller)
        if version == V1 and v1.support is not Support.ALWAYS and self._only_unified(v1, v2):
            return V2
        return version

    def _only_unified(self, v1: File[Any], v2: File[Any]) -> bool:
        """Whether only the unified hierarchy of a hybrid host has a file: pressure."""
        if v2.controller or self.cgroups.unified is None:
            return False
        hierarchy = self.cgroups.hierarchy(v1.controller, V1)
        groups = ("", self.layout.root)
        return not any((hierarchy / group / v1.name).exists() for group in groups)

    def _find_layouts(self) -> tuple[Layout, ...]:
        hierarchy = self.cgroups.hierarchy("cpu", self.cgroups.version("cpu"))
        try:
            found = KubeRoots(hierarchy).find(self._monotonic())
        except OSError:
            found = {}
        if found:
            return tuple(sorted(found, key=_likelihood))
        driver = driver_of_kubelet(self.paths.proc) or Driver.SYSTEMD
        return (Layout.default(driver),)


def _likelihood(layout: Layout) -> tuple[int, bool, str]:
    """Sort key: near the top first; among those systemd, as the other may be a remainder."""
    return layout.root.count("/"), layout.driver is not Driver.SYSTEMD, layout.root
