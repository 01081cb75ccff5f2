"""One file of one group, as the sampling pass knows it from tick to tick."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.host import Host
from koordlet.host.resource import File, Resource, Support
from koordlet.host.resources import RESOURCES


class Entry:
    """The way to read a file, and its latest contents."""

    __slots__ = (
        "_group",
        "_host",
        "error",
        "found",
        "parse",
        "path",
        "read",
        "resource",
        "shares",
        "tick",
    )

    def __init__(self, host: Host, resource: Resource[Any], group: str, *, shares: bool) -> None:
        self.resource = resource
        self.shares = shares  # other resources are in the same file
        self.tick = 0  # in which it was read last; 0: not yet
        self.found: tuple[Any, float] | None = None  # value, and monotonic seconds of the reading
        self.error: KernelFileError | None = None  # why there is no value
        self._host = host
        self._group = group
        try:
            file = host.file(resource)
            self.path = host.path(resource, group)
            self.parse = file.parse  # raises ValueError
            self.read = self._reading(file)
        except Unsupported as err:
            self.path = resource.name
            self.read = _refusal(err)

    def malformed(self, text: bytes) -> KernelFileError:
        """Return the error, with path and hint, for a text that parse refuses."""
        try:
            self._host.parse(self.resource, text, self._group)
        except KernelFileError as err:
            return err
        raise AssertionError(f"{self.path}: the parser refused a text, then took it")

    def _reading(self, file: File[Any]) -> Callable[[str], bytes]:
        descriptors = self._host.descriptors
        read = descriptors.read if file.hold else descriptors.read_once
        if file.support is not Support.KUBEPODS:
            return read

        # Opening the same missing file of hundreds of groups would be dear.
        def read_if_supported(path: str) -> bytes:
            if not self._host.supports(self.resource, self._group):
                raise Unsupported.here(path, "no such file", self.resource.needs)
            return read(path)

        return read_if_supported


def sharing_files(host: Host) -> frozenset[Resource[Any]]:
    """Return the resources whose files hold others too, as cpu.stat does on cgroup v2."""
    paths = {}
    for resource in RESOURCES:
        try:
            paths[resource] = host.path(resource, "*")
        except Unsupported:
            continue
    count = Counter(paths.values())
    return frozenset(resource for resource, path in paths.items() if count[path] > 1)


def _refusal(err: Unsupported) -> Callable[[str], bytes]:
    def refuse(_: str) -> bytes:
        raise err

    return refuse
