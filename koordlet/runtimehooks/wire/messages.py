"""The messages of NRI, with the fields that matter here.

Source: github.com/containerd/nri, pkg/api/api.proto; chapters of the protocol up to v0.12.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from koordlet.runtimehooks.wire.protobuf import (
    Message,
    boolean,
    integer,
    message,
    messages,
    optional_integer,
    optional_unsigned,
    text,
    texts,
    texts_by_text,
)

RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"


class NriEvent(IntEnum):
    """Events that a plugin can subscribe to."""

    RUN_POD_SANDBOX = 1
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    START_CONTAINER = 6
    UPDATE_CONTAINER = 8

    @property
    def bit(self) -> int:
        """Its bit in ConfigureResponse.events."""
        return 1 << (self - 1)


@dataclass(frozen=True, slots=True)
class RegisterPluginRequest(Message):
    name: str = text(1)
    index: str = text(2)  # two digits


@dataclass(frozen=True, slots=True)
class ConfigureRequest(Message):
    config: str = text(1)
    runtime_name: str = text(2)
    runtime_version: str = text(3)
    registration_timeout_ms: int = integer(4)
    request_timeout_ms: int = integer(5)
    nri_version: str = text(6)


@dataclass(frozen=True, slots=True)
class ConfigureResponse(Message):
    events: int = integer(2)  # 0 means all


@dataclass(frozen=True, slots=True)
class LinuxMemory(Message):
    limit: int | None = optional_integer(1)  # bytes; -1: no limit


@dataclass(frozen=True, slots=True)
class LinuxCPU(Message):
    shares: int | None = optional_unsigned(1)
    quota: int | None = optional_integer(2)  # us in a period; -1: no limit
    period: int | None = optional_unsigned(3)  # us
    cpus: str = text(6)  # "": unset, which cannot clear


@dataclass(frozen=True, slots=True)
class LinuxResources(Message):
    memory: LinuxMemory | None = message(1, LinuxMemory)
    cpu: LinuxCPU | None = message(2, LinuxCPU)


@dataclass(frozen=True, slots=True)
class LinuxPodSandbox(Message):
    cgroup_parent: str = text(3)  # path from the root of the hierarchy


@dataclass(frozen=True, slots=True)
class PodSandbox(Message):
    id: str = text(1)
    name: str = text(2)
    uid: str = text(3)
    namespace: str = text(4)
    labels: Mapping[str, str] = texts_by_text(5)
    annotations: Mapping[str, str] = texts_by_text(6)
    linux: LinuxPodSandbox | None = message(8, LinuxPodSandbox)


@dataclass(frozen=True, slots=True)
class LinuxContainer(Message):
    resources: LinuxResources | None = message(3, LinuxResources)


@dataclass(frozen=True, slots=True)
class Container(Message):
    id: str = text(1)
    pod_sandbox_id: str = text(2)
    name: str = text(3)
    state: int = integer(4)
    linux: LinuxContainer | None = message(11, LinuxContainer)


class ContainerState(IntEnum):
    """The states of a container."""

    CREATED = 1
    PAUSED = 2
    RUNNING = 3
    STOPPED = 4

    @classmethod
    def living(cls) -> "frozenset[int]":
        """Return the states of containers that have a cgroup."""
        return frozenset({cls.CREATED, cls.PAUSED, cls.RUNNING})


@dataclass(frozen=True, slots=True)
class LinuxContainerUpdate(Message):
    resources: LinuxResources | None = message(1, LinuxResources)


@dataclass(frozen=True, slots=True)
class ContainerUpdate(Message):
    container_id: str = text(1)
    linux: LinuxContainerUpdate | None = message(2, LinuxContainerUpdate)
    ignore_failure: bool = boolean(3)


@dataclass(frozen=True, slots=True)
class SynchronizeRequest(Message):
    pods: tuple[PodSandbox, ...] = messages(1, PodSandbox)
    containers: tuple[Container, ...] = messages(2, Container)
    more: bool = boolean(3)


@dataclass(frozen=True, slots=True)
class SynchronizeResponse(Message):
    update: tuple[ContainerUpdate, ...] = messages(1, ContainerUpdate)
    more: bool = boolean(2)


@dataclass(frozen=True, slots=True)
class PodSandboxRequest(Message):
    """RunPodSandbox, RemovePodSandbox."""

    pod: PodSandbox | None = message(1, PodSandbox)


@dataclass(frozen=True, slots=True)
class StateChangeEvent(Message):
    event: int = integer(1)
    pod: PodSandbox | None = message(2, PodSandbox)
    container: Container | None = message(3, Container)


@dataclass(frozen=True, slots=True)
class ContainerRequest(Message):
    """CreateContainer, StartContainer, UpdateContainer. resources: to update to."""

    pod: PodSandbox | None = message(1, PodSandbox)
    container: Container | None = message(2, Container)
    resources: LinuxResources | None = message(3, LinuxResources)


@dataclass(frozen=True, slots=True)
class KeyValue(Message):
    """An environment variable."""

    key: str = text(1)
    value: str = text(2)


@dataclass(frozen=True, slots=True)
class ContainerMount(Message):
    destination: str = text(1)  # in the container
    type: str = text(2)
    source: str = text(3)  # on the node
    options: tuple[str, ...] = texts(4)


@dataclass(frozen=True, slots=True)
class LinuxDevice(Message):
    path: str = text(1)
    type: str = text(2)  # c: of characters
    major: int = integer(3)
    minor: int = integer(4)
    file_mode: int | None = optional_unsigned(5)


@dataclass(frozen=True, slots=True)
class LinuxContainerAdjustment(Message):
    devices: tuple[LinuxDevice, ...] = messages(1, LinuxDevice)
    resources: LinuxResources | None = message(2, LinuxResources)


@dataclass(frozen=True, slots=True)
class ContainerAdjustment(Message):
    mounts: tuple[ContainerMount, ...] = messages(3, ContainerMount)
    env: tuple[KeyValue, ...] = messages(4, KeyValue)
    linux: LinuxContainerAdjustment | None = message(6, LinuxContainerAdjustment)


@dataclass(frozen=True, slots=True)
class CreateContainerResponse(Message):
    adjust: ContainerAdjustment | None = message(1, ContainerAdjustment)


@dataclass(frozen=True, slots=True)
class UpdateContainerResponse(Message):
    update: tuple[ContainerUpdate, ...] = messages(1, ContainerUpdate)
