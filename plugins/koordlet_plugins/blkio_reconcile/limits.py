"""Kernel values from the settings of devices. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from koord.api.slo.resourceqos import IOConfig
from koordlet.plugin import resources
from koordlet.plugin.kernel import Resource

Devices = Mapping[str, IOConfig]  # settings by device, "<major>:<minor>"

V1_THROTTLES: tuple[tuple[Resource[dict[str, int]], str], ...] = (
    (resources.BLKIO_READ_IOPS, "read_iops"),
    (resources.BLKIO_READ_BPS, "read_bps"),
    (resources.BLKIO_WRITE_IOPS, "write_iops"),
    (resources.BLKIO_WRITE_BPS, "write_bps"),
)
V2_THROTTLES = {
    "rbps": "read_bps",
    "wbps": "write_bps",
    "riops": "read_iops",
    "wiops": "write_iops",
}
WEIGHTS = (  # the first that the kernel has
    resources.BLKIO_COST_WEIGHT,
    resources.IO_DEVICE_WEIGHT,
    resources.BFQ_DEVICE_WEIGHT,
)
LATENCY, PERCENT = 3000, 95  # defaults of iocost's targets: us, percent
_MODEL = {
    "rbps": "model_read_bps",
    "rseqiops": "model_read_seq_iops",
    "rrandiops": "model_read_rand_iops",
    "wbps": "model_write_bps",
    "wseqiops": "model_write_seq_iops",
    "wrandiops": "model_write_rand_iops",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """A value for one file of a cgroup, and its reason."""

    resource: Resource[Any]
    value: Mapping[str, Any]  # by device
    reason: str


def throttles(devices: Devices, version: int) -> Iterator[Limit]:
    """Return the limits in bytes and operations per second; 0 is none, as if it were not set."""
    if version == 2:
        named = _by_device(
            devices,
            lambda io: {
                name: most for name, key in V2_THROTTLES.items() if (most := getattr(io, key))
            },
        )
        if named:
            yield Limit(resources.IO_MAX, named, "limits by device as they are set")
        return
    for resource, key in V1_THROTTLES:
        numbers = {device: most for device, io in devices.items() if (most := getattr(io, key))}
        if numbers:
            yield Limit(resource, numbers, "limits by device as they are set")


def weights(devices: Devices, resource: Resource[dict[str, int]]) -> Iterator[Limit]:
    """Return the weights; 100 is that of a group without one."""
    numbers = _by_device(devices, lambda io: io.io_weight_percent or 0)
    if numbers:
        yield Limit(resource, numbers, "ioWeightPercent by device as it is set")


def latencies(devices: Devices) -> Iterator[Limit]:
    """Return the latency targets of io.latency, which knows one for reads and writes together."""

    def target(io: IOConfig) -> dict[str, int]:
        least = min((one for one in (io.read_latency, io.write_latency) if one), default=0)
        return {"target": least} if least else {}

    targets = _by_device(devices, target)
    if targets:
        yield Limit(resources.IO_LATENCY, targets, "the lower of readLatency and writeLatency")


def costs(devices: Devices) -> Iterator[Limit]:
    """Return the settings of iocost in the root cgroup: its targets, and the cost model."""
    if devices:
        targets = {device: _targets(io) for device, io in devices.items()}
        yield Limit(resources.BLKIO_COST_QOS, targets, "latency targets of iocost as they are set")
    models = _by_device(devices, _model)
    if models:
        yield Limit(resources.BLKIO_COST_MODEL, models, "cost model of the device as it is set")


def has_half_a_model(io: IOConfig) -> bool:
    """Whether a cost model is wanted, and some of its numbers are missing."""
    return bool(io.enable_user_model) and not _model(io)


def tighter(one: Devices, other: Devices) -> dict[str, IOConfig]:
    """Return the lower of the throttles of two groups that both hold, and nothing else."""
    keys = [key for _, key in V1_THROTTLES]
    return {
        device: IOConfig(
            **{
                key: min(found)
                for key in keys
                if (
                    found := [
                        most
                        for io in (one.get(device), other.get(device))
                        if io and (most := getattr(io, key))
                    ]
                )
            }
        )
        for device in one.keys() | other.keys()
    }


def _targets(io: IOConfig) -> dict[str, str]:
    def number(value: int | None, default: int) -> int:
        return default if value is None else value

    return {
        "enable": "1",
        "ctrl": "user",
        "rpct": f"{number(io.read_latency_percent, PERCENT)}.00",
        "rlat": str(number(io.read_latency, LATENCY)),
        "wpct": f"{number(io.write_latency_percent, PERCENT)}.00",
        "wlat": str(number(io.write_latency, LATENCY)),
    }


def _model(io: IOConfig) -> dict[str, str]:
    """A model needs all of its six numbers; without one of them the kernel keeps its own."""
    numbers = {name: getattr(io, key) for name, key in _MODEL.items()}
    if not io.enable_user_model or not all(numbers.values()):
        return {}
    return {"ctrl": "user"} | {name: str(number) for name, number in numbers.items()}


def _by_device(devices: Devices, of: Callable[[IOConfig], Any]) -> dict[str, Any]:
    return {device: value for device, io in sorted(devices.items()) if (value := of(io))}
