"""What a container gets beside its resources: variables, mounts and devices.

They are its own for as long as it lives: there is no original, and nothing to restore.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from koordlet.runtimehooks.adjustments import Adjustment, linux_resources
from koordlet.runtimehooks.wire.messages import (
    ContainerAdjustment,
    KeyValue,
    LinuxContainerAdjustment,
    LinuxDevice,
    Mount,
)
from koordlet.statesinformer.model import PodMeta

if TYPE_CHECKING:  # not needed on nodes without devices
    from koordlet.host.devices.rdma import DeviceFile
    from koordlet.rules.gpuenvironment import BindMount

_FILE_MODE = 0o666  # of device files; the container's device cgroup says who may use them


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    """What one injector adds to a container."""

    owner: str = ""  # its name
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: "tuple[BindMount, ...]" = ()
    devices: "tuple[DeviceFile, ...]" = ()

    def __bool__(self) -> bool:
        """Whether there is anything to add."""
        return bool(self.env or self.mounts or self.devices)

    def to_json(self) -> dict[str, object]:
        """Return it as /explain has it."""
        return {
            "by": self.owner,
            "env": dict(self.env),
            "mounts": [f"{one.source}:{one.destination}" for one in self.mounts],
            "devices": [f"{one.path} {one.major}:{one.minor}" for one in self.devices],
        }


class Injector(Protocol):
    """Decides what to add to the one container of a pod that is about to be made."""

    @property
    def name(self) -> str: ...  # its gate

    async def inject(self, meta: PodMeta, *, dry_run: bool) -> Injection:
        """Return what is added. dry_run: it is not, so nothing is made for it either.

        Raises:
            InvalidObject, OSError, KernelFileError: nothing is added.
        """
        ...


class Injected(NamedTuple):
    """What is added to a container, and what would be without dry-run."""

    real: tuple[Injection, ...] = ()
    dry_run: tuple[Injection, ...] = ()
    failed: tuple[str, ...] = ()  # injector: error


NOTHING = Injected()


def container_adjustment(
    adjusted: Iterable[Adjustment], injected: Iterable[Injection]
) -> ContainerAdjustment | None:
    """Return both as the runtime takes them; None: there is nothing."""
    resources, added = linux_resources(adjusted), tuple(injected)
    devices = tuple(_device(device) for one in added for device in one.devices)
    made = ContainerAdjustment(
        mounts=tuple(_mount(mount) for one in added for mount in one.mounts),
        env=tuple(KeyValue(*pair) for one in added for pair in one.env.items()),
        linux=LinuxContainerAdjustment(devices, resources) if devices or resources else None,
    )
    return None if made == ContainerAdjustment() else made


def _mount(mount: "BindMount") -> Mount:
    return Mount(mount.destination, "bind", mount.source, ("rbind",))


def _device(device: "DeviceFile") -> LinuxDevice:
    return LinuxDevice(device.path, "c", device.major, device.minor, _FILE_MODE)
