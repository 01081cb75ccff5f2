"""Cgroup files of block devices (blkio, io) and network class: their text forms and rows."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from koordlet.host.cgroups.cgroupfiles import parse_number
from koordlet.host.net.netfiles import is_interface_name
from koordlet.host.procfiles import shown
from koordlet.host.resource import (
    ANOLIS,
    File,
    Resource,
    Support,
    Text,
    Validator,
    class_id,
    group_file,
    group_row,
    in_range,
)

T = TypeVar("T")
MAX_DEVICES = 256  # in one file
UINT32_MAX = 2**32 - 2  # the kernel takes 2^32-1 for no limit, and keeps 32 bits of what is more
UINT64_MAX = 2**64 - 2

_DEVICE = re.compile(r"(0|[1-9]\d{0,3}):(0|[1-9]\d{0,6})", re.ASCII)
_DEVICE_NUMBER = re.compile(r"\d{1,20}", re.ASCII)
_COST_VALUE = re.compile(r"auto|user|linear|\d{1,20}(\.\d{2})?", re.ASCII)

LineOrder = Callable[[str], tuple[object, ...]]
DeviceNumbers = dict[str, int]  # by device
DeviceSettings = dict[str, dict[str, int]]  # by device and name
DeviceParameters = dict[str, dict[str, str]]  # by device and name


def _device_order(device: str) -> tuple[object, ...]:
    return tuple(map(int, device.split(":")))


def parse_device_numbers(data: bytes) -> DeviceNumbers:
    """Return the number of each device, from lines "<major>:<minor> <number>"."""
    return dict(_number(line) for line in _lines(data))


def parse_default_weight(data: bytes) -> int:
    """Return the group's own weight from its line "default <number>"; those of devices follow."""
    first = data.partition(b"\n")[0].decode(errors="replace")
    name, _, number = first.partition(" ")
    if name != "default" or not _DEVICE_NUMBER.fullmatch(number) or not data.endswith(b"\n"):
        raise ValueError(f"wanted a line 'default <weight>', found {shown(data)}")
    return int(number)


def weight_text() -> Text[int]:
    """The text form of a group's weight where devices may have weights of their own."""

    def of(value: int) -> str:
        return str(_checked_number(value))

    return Text(
        of,
        lambda data: str(parse_default_weight(data)),
        int,
        lambda text, now: f"default {text}",
    )


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """The weights that a group has for single devices; its own, the line "default", is another.

    unset: what the kernel takes for "no weight of its own". A number is none where it is found.
    """

    low: int
    high: int
    unset: str = "default"

    def parse(self, data: bytes) -> DeviceNumbers:
        """Return the weight of each device, from lines "<major>:<minor> <number>"."""
        lines = data.splitlines(keepends=True)
        found = parse_device_numbers(b"".join(x for x in lines if not x.startswith(b"default ")))
        return {device: number for device, number in found.items() if str(number) != self.unset}

    def text(self) -> Text[DeviceNumbers]:
        """Their text form; a device that is not in it weighs what the group weighs."""

        def of(value: Mapping[str, int]) -> str:
            weights = {
                _device(device): _checked_number(number)
                for device, number in _bounded(value).items()
            }
            return sorted_lines(
                f"{device} {number}"
                for device, number in weights.items()
                if str(number) != self.unset
            )

        return keyed_text(of, self.parse, lambda device: f"{device} {self.unset}")

    def validate(self, text: str) -> bool:
        """Accept the text of weights in the range."""
        try:
            weights = self.parse(_as_file(text))
        except ValueError:
            return False
        return all(self.low <= weight <= self.high for weight in weights.values())

    def __str__(self) -> str:
        return f"{self.low} to {self.high} by device"


@dataclass(frozen=True, slots=True)
class IoCostSettings:
    """Settings of iocost by device: words and numbers by name, as the kernel shows them.

    One whose first name has the value off is not set; the kernel goes on showing it.
    """

    names: tuple[str, ...]  # in the kernel's order
    off: str  # "<name>=<value>"

    def parse(self, data: bytes) -> DeviceParameters:
        """Return the settings of each device that has some, from "<device> <name>=<value> ...".

        Names that are not known are left out, and left as they are.
        """
        found = {}
        for line in _lines(data):
            device, *words = line.split()
            if self.off not in words:
                found[_device(device)] = self._known(words)
        return {device: words for device, words in found.items() if words}

    def text(self) -> Text[DeviceParameters]:
        """Their text form; off takes a device away."""

        def of(value: Mapping[str, Mapping[str, str]]) -> str:
            return sorted_lines(
                " ".join([_device(device), *self._ordered(words)])
                for device, words in _bounded(value).items()
                if words
            )

        return keyed_text(of, self.parse, lambda device: f"{device} {self.off}")

    def validate(self, text: str) -> bool:
        """Accept the words of the kernel, and numbers up to 20 digits with two decimals at most."""
        try:
            self.parse(_as_file(text))
        except ValueError:
            return False
        return True

    def _known(self, words: Iterable[str]) -> dict[str, str]:
        pairs = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise ValueError(f"wanted '<name>=<value>', found {word!r:.60}")
            if name in self.names:
                pairs[name] = _cost_value(value)
        return pairs

    def _ordered(self, words: Mapping[str, str]) -> Iterable[str]:
        if not isinstance(words, Mapping) or not words.keys() <= set(self.names):
            raise ValueError(f"wanted some of {', '.join(self.names)}, found {words!r:.60}")
        return [f"{name}={_cost_value(words[name])}" for name in self.names if name in words]


def number_text() -> Text[DeviceNumbers]:
    """The text form of numbers by device; "<major>:<minor> 0" takes one away."""

    def of(value: Mapping[str, int]) -> str:
        numbers = {
            _device(device): _checked_number(number) for device, number in _bounded(value).items()
        }
        return sorted_lines(f"{device} {number}" for device, number in numbers.items() if number)

    return keyed_text(of, parse_device_numbers, lambda device: f"{device} 0")


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The settings that a file has by device; one that is not set is "max"."""

    highest: Mapping[str, int]  # by name, in the kernel's order

    def parse(self, data: bytes) -> DeviceSettings:
        """Return the settings of each device, from lines "<major>:<minor> <name>=<number> ...".

        What is "max" is not set. Names that are not known are left out, and left as they are.
        """
        found = dict(self._parsed(line) for line in _lines(data))
        return {device: settings for device, settings in found.items() if settings}

    def text(self) -> Text[DeviceSettings]:
        """Their text form; all "max" takes a device away."""

        def of(value: Mapping[str, Mapping[str, int]]) -> str:
            lines = []
            for device, settings in _bounded(value).items():
                numbers = self._checked(settings)
                if any(numbers.values()):
                    lines.append(self._line(_device(device), numbers))
            return sorted_lines(lines)

        return keyed_text(of, self.parse, lambda device: self._line(device, {}))

    def validate(self, text: str) -> bool:
        """Accept the text of a value whose numbers are in the range of their names."""
        try:
            settings = self.parse(_as_file(text))
        except ValueError:
            return False
        pairs = [pair for one in settings.values() for pair in one.items()]
        return all(0 < number <= self.highest[name] for name, number in pairs)

    def _line(self, device: str, numbers: Mapping[str, int]) -> str:
        return " ".join(
            [device, *(f"{name}={numbers.get(name) or 'max'}" for name in self.highest)]
        )

    def _checked(self, settings: Mapping[str, int]) -> dict[str, int]:
        if not isinstance(settings, Mapping) or not settings.keys() <= self.highest.keys():
            raise ValueError(f"wanted some of {', '.join(self.highest)}, found {settings!r:.60}")
        return {name: _checked_number(number) for name, number in settings.items()}

    def _parsed(self, line: str) -> tuple[str, dict[str, int]]:
        device, *words = line.split()
        settings = {}
        for word in words:
            name, equals, number = word.partition("=")
            if not equals or (name in self.highest and not _is_number_or_max(number)):
                raise ValueError(f"wanted '<name>=<number>', found {word!r:.60}")
            if name in self.highest and number != "max":
                settings[name] = int(number)
        return _device(device), settings


def numbers_up_to(high: int) -> Validator:
    """Accept the text of numbers by device from 0, which is none, to high."""

    def valid(text: str) -> bool:
        try:
            numbers = parse_device_numbers(_as_file(text))
        except ValueError:
            return False
        return all(number <= high for number in numbers.values())

    valid.__doc__ = f"Accept numbers by device, 0 (none) to {high}."
    return valid


def keyed_text(
    of: Callable[[T], str],
    parse: Callable[[bytes], T],
    gone: Callable[[str], str],
    order: LineOrder = _device_order,
) -> Text[T]:
    """Lines that are shown together and written one by one; gone takes a device away."""

    def now(data: bytes) -> str:
        return of(parse(data))

    def content(text: str, data: bytes) -> str:
        wanted, found = text.splitlines(), now(data).splitlines()
        kept = set(map(_name, wanted))
        removed = [gone(name) for name in map(_name, found) if name not in kept]
        changed = set(wanted).difference(found)
        return sorted_lines([*removed, *changed], order)

    return Text(of, now, lambda text: parse(_as_file(text)), content, by_line=True)


def _lines(data: bytes) -> list[str]:
    if data and not data.endswith(b"\n"):
        raise ValueError(f"wanted lines and a newline, found {shown(data[-60:])} at the end")
    lines = data.decode().splitlines()
    names = list(map(_name, lines))
    if len(lines) > MAX_DEVICES or len(set(names)) != len(names):
        raise ValueError(f"wanted at most {MAX_DEVICES} devices, each once, found {shown(data)}")
    return lines


def _number(line: str) -> tuple[str, int]:
    device, _, number = line.partition(" ")
    if not _DEVICE_NUMBER.fullmatch(number):
        raise ValueError(f"wanted '<major>:<minor> <number>', found {line!r:.60}")
    return _device(device), int(number)


def _device(text: object) -> str:
    if not isinstance(text, str) or not _DEVICE.fullmatch(text):
        raise ValueError(f'wanted a device as "<major>:<minor>", found {text!r:.60}')
    return text


def _name(line: str) -> str:
    return line.partition(" ")[0]


def sorted_lines(lines: Iterable[str], order: LineOrder = _device_order) -> str:
    """Return lines in the order of their first words."""
    return "\n".join(sorted(lines, key=lambda line: order(_name(line))))


def _as_file(text: str) -> bytes:
    return f"{text}\n".encode() if text else b""


def _cost_value(value: object) -> str:
    if not isinstance(value, str) or not _COST_VALUE.fullmatch(value):
        raise ValueError(f"wanted auto, user, linear or a number, found {value!r:.60}")
    return value


def _checked_number(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"wanted a whole number from 0, found {number!r:.60}")
    return number


def _is_number_or_max(text: str) -> bool:
    return text == "max" or bool(_DEVICE_NUMBER.fullmatch(text))


def _bounded(value: Mapping[str, T]) -> Mapping[str, T]:
    if not isinstance(value, Mapping) or len(value) > MAX_DEVICES:
        raise ValueError(f"wanted values by device, {MAX_DEVICES} at most, found {value!r:.60}")
    return value


MAX_INTERFACES = 8192
_MAX_PRIORITY = (1 << 32) - 1
_PRIORITY = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)


def parse_priorities(data: bytes) -> DeviceNumbers:
    """Return what is not 0, from lines "<interface> <number>". Raises ValueError."""
    lines = data.decode("ascii", "replace").split("\n")
    if lines.pop() or len(lines) > MAX_INTERFACES:
        raise ValueError(f"wanted lines '<interface> <number>', found {shown(data[-60:])}")
    found: DeviceNumbers = {}
    for line in lines:
        name, _, number = line.rpartition(" ")
        if not _PRIORITY.fullmatch(number) or name in found:
            raise ValueError(f"wanted '<interface> <number>', each once, found {line!r:.60}")
        found[name] = int(number)
    # A name that is none of ours is some other's, and stays what it is.
    return {name: each for name, each in found.items() if each and is_interface_name(name)}


def _priorities_text(value: DeviceNumbers) -> str:
    if not isinstance(value, Mapping) or not all(map(_is_valid, value, value.values())):
        raise ValueError(f"wanted numbers of 32 bits by interface, found {value!r:.60}")
    return sorted_lines(
        (f"{name} {number}" for name, number in value.items() if number), _interface_order
    )


def _is_valid(name: object, number: object) -> bool:
    is_number = (
        isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= _MAX_PRIORITY
    )
    return is_number and isinstance(name, str) and is_interface_name(name)


def _interface_order(name: str) -> tuple[object, ...]:
    return (name,)


def is_priorities(text: str) -> bool:
    """Accept numbers of 32 bits by interface, one in a line."""
    try:
        found = parse_priorities(f"{text}\n".encode() if text else b"")
    except (ValueError, UnicodeEncodeError):
        return False
    return max(found.values(), default=0) <= _MAX_PRIORITY


PRIORITIES = keyed_text(
    _priorities_text, parse_priorities, lambda name: f"{name} 0", _interface_order
)


# --- The rows of koordlet.host.resources that these files are ---

BFQ = "the I/O scheduler bfq (CONFIG_IOSCHED_BFQ, the module bfq)"
BLKIO = "cgroup v1 with CONFIG_BLK_DEV_THROTTLING"
IO_CONTROLLER = "cgroup v2 with the io controller"

_BY_DEVICE = "by device; one that is not named has none"


def _throttle(name: str, unit: str, high: int) -> Resource[DeviceNumbers]:
    """A limit of cgroup v1 by device."""
    file = group_file(
        "blkio",
        f"blkio.throttle.{name}_device",
        parse_device_numbers,
        Support.KUBEPODS,
        numbers_up_to(high),
        text=number_text(),
    )
    return group_row(f"blkio_throttle_{name}_device", f"{unit} {_BY_DEVICE}", file, None, BLKIO)


BLKIO_READ_IOPS = _throttle("read_iops", "operations per second", UINT32_MAX)
BLKIO_READ_BPS = _throttle("read_bps", "bytes per second", UINT64_MAX)
BLKIO_WRITE_IOPS = _throttle("write_iops", "operations per second", UINT32_MAX)
BLKIO_WRITE_BPS = _throttle("write_bps", "bytes per second", UINT64_MAX)
BLKIO_WEIGHT = group_row(
    "blkio_weight",
    "1 to 1000, 10 at least with the scheduler cfq",
    group_file(
        "blkio",
        "blkio.bfq.weight",
        parse_number,
        Support.PER_GROUP,
        in_range(1, 1000),
        others=("blkio.weight",),
    ),
    None,
    f"cgroup v1 with {BFQ}, or Linux before 5.0 with cfq",
)


def _io(name: str, unit: str, names: DeviceLimits, needs: str) -> Resource[DeviceSettings]:
    """Settings of cgroup v2 by device."""
    file = group_file("io", name, names.parse, Support.PER_GROUP, names.validate, text=names.text())
    return group_row(name.replace(".", "_"), f"{unit} {_BY_DEVICE}", None, file, needs)


IO_MAX = _io(
    "io.max",
    "rbps and wbps in bytes, riops and wiops in operations per second,",
    DeviceLimits(
        {"rbps": UINT64_MAX, "wbps": UINT64_MAX, "riops": UINT32_MAX, "wiops": UINT32_MAX}
    ),
    f"{IO_CONTROLLER} and CONFIG_BLK_DEV_THROTTLING",
)
IO_LATENCY = _io(
    "io.latency",
    "target in us",
    DeviceLimits({"target": 10**12}),
    f"{IO_CONTROLLER} and CONFIG_BLK_CGROUP_IOLATENCY",
)


def _io_weight(name: str, high: int, needs: str) -> Resource[int]:
    """The weight of a group of cgroup v2; those that it has for devices stay as they are."""
    file = group_file(
        "io",
        name,
        parse_default_weight,
        Support.PER_GROUP,
        in_range(1, high),
        text=weight_text(),
    )
    return group_row(name.replace(".", "_"), f"1 to {high}, 100 by default", None, file, needs)


IO_WEIGHT = _io_weight("io.weight", 10_000, f"{IO_CONTROLLER} and CONFIG_BLK_CGROUP_IOCOST")
IO_BFQ_WEIGHT = _io_weight("io.bfq.weight", 1000, f"{IO_CONTROLLER} and {BFQ}")


def _weights(
    name: str, v1: File[DeviceNumbers] | None, v2: File[DeviceNumbers] | None, needs: str, unit: str
) -> Resource[DeviceNumbers]:
    """The weights of a group for single devices; its own stays as it is."""
    return group_row(
        name, f"{unit} by device; one that is not named has the group's", v1, v2, needs
    )


def _weight_file(controller: str, name: str, weights: DeviceWeights) -> File[DeviceNumbers]:
    return group_file(
        controller, name, weights.parse, Support.PER_GROUP, weights.validate, text=weights.text()
    )


_BFQ_WEIGHTS = DeviceWeights(1, 1000)
BLKIO_COST_WEIGHT = _weights(
    "blkio_cost_weight",
    _weight_file("blkio", "blkio.cost.weight", DeviceWeights(1, 100, unset="100")),
    None,
    ANOLIS,
    "1 to 100",
)
IO_DEVICE_WEIGHT = _weights(
    "io_device_weight",
    None,
    _weight_file("io", "io.weight", DeviceWeights(1, 10_000)),
    f"{IO_CONTROLLER} and CONFIG_BLK_CGROUP_IOCOST",
    "1 to 10000",
)
BFQ_DEVICE_WEIGHT = _weights(
    "bfq_device_weight",
    _weight_file("blkio", "blkio.bfq.weight_device", _BFQ_WEIGHTS),
    _weight_file("io", "io.bfq.weight", _BFQ_WEIGHTS),
    BFQ,
    "1 to 1000",
)


def _cost(name: str, unit: str, words: IoCostSettings) -> Resource[DeviceParameters]:
    """A file of the root group, on v1 of Anolis kernels."""
    v1, v2 = (
        group_file(
            controller,
            f"{controller}.cost.{name}",
            words.parse,
            Support.ROOT,
            words.validate,
            text=words.text(),
        )
        for controller in ("blkio", "io")
    )
    needs = f"{IO_CONTROLLER} and CONFIG_BLK_CGROUP_IOCOST; on cgroup v1 {ANOLIS}"
    return group_row(f"blkio_cost_{name}", f"{unit} by device", v1, v2, needs)


BLKIO_COST_QOS = _cost(
    "qos",
    "latency targets",
    IoCostSettings(("enable", "ctrl", "rpct", "rlat", "wpct", "wlat"), "enable=0"),
)
BLKIO_COST_MODEL = _cost(
    "model",
    "costs",
    IoCostSettings(
        ("ctrl", "rbps", "rseqiops", "rrandiops", "wbps", "wseqiops", "wrandiops"), "ctrl=auto"
    ),
)
NET_CLASS_ID = group_row(
    "net_class_id",
    "class of outgoing packets",
    group_file("net_cls", "net_cls.classid", parse_number, Support.KUBEPODS, class_id),
    None,
    "cgroup v1 with CONFIG_CGROUP_NET_CLASSID",
)

NET_PRIORITY = group_row(
    "net_priority",
    "priority of outgoing packets by network interface; one that is not named has 0",
    group_file(
        "net_prio",
        "net_prio.ifpriomap",
        parse_priorities,
        Support.KUBEPODS,
        is_priorities,
        text=PRIORITIES,
        copied=True,
    ),
    None,
    "cgroup v1 with CONFIG_CGROUP_NET_PRIO",
)
