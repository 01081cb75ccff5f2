"""Host applications as the configuration of all nodes lists them, on their way into NodeSLOs."""

from dataclasses import dataclass

from koord.api.decoding.jsonrules import ListOf
from koord.api.decoding.wire import shape_of, wire
from koord.api.slo.nodeslo import parse_host_applications


@dataclass(frozen=True, slots=True)
class CgroupPath:
    """cgroupPath: where the application's cgroup is."""

    base: str = wire("base", "")
    parent_dir: str = wire("parentDir", "")
    relative_path: str = wire("relativePath", "")


@dataclass(frozen=True, slots=True)
class HostApplicationStrategy:
    """strategy: an object that has no fields yet."""


@dataclass(frozen=True, slots=True)
class HostApplicationSpec:
    """One application, as it is written."""

    name: str = wire("name", "")
    priority: str = wire("priority", "")
    qos: str = wire("qos", "")
    cgroup_path: CgroupPath | None = wire("cgroupPath")
    strategy: HostApplicationStrategy | None = wire("strategy")


class _Applications(ListOf):
    """A list that each node will be able to use."""

    def check(self, value: object, where: str) -> None:
        parse_host_applications(value, where)


@dataclass(frozen=True, slots=True)
class HostApplications:
    """The applications of the nodes that one entry of the configuration is for."""

    applications: tuple[HostApplicationSpec, ...] = wire(
        "applications", (), shape=_Applications(shape_of(HostApplicationSpec))
    )


HOST_APPLICATIONS = shape_of(HostApplications)
