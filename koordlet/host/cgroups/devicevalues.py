"""Values that a cgroup has by block device: a line per device in the file, a line per write.

A value is a mapping from "<major>:<minor>" to a number, or to numbers by name. A device that is
not in it has no setting; 0 says the same, as in Koordinator. The text of a value is its lines as
the kernel shows them, sorted by device.

Source: kernel docs, admin-guide/cgroup-v1/blkio-controller and admin-guide/cgroup-v2 (IO).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from koordlet.host.kerneltext import Text
from koordlet.host.proc.procfiles import shown
from koordlet.host.validators import Validator

T = TypeVar("T")
MOST_DEVICES = 256  # in one file
UINT32_MOST = 2**32 - 2  # the kernel takes 2^32-1 for no limit, and keeps 32 bits of what is more
UINT64_MOST = 2**64 - 2

_DEVICE = re.compile(r"(0|[1-9]\d{0,3}):(0|[1-9]\d{0,6})", re.ASCII)
_NUMBER = re.compile(r"\d{1,20}", re.ASCII)
_COST_WORD = re.compile(r"auto|user|linear|\d{1,20}(\.\d{2})?", re.ASCII)

Order = Callable[[str], tuple[object, ...]]
Numbers = dict[str, int]  # by device
DeviceSettings = dict[str, dict[str, int]]  # by device and name
DeviceWords = dict[str, dict[str, str]]  # by device and name


def _order(device: str) -> tuple[object, ...]:
    return tuple(map(int, device.split(":")))


def parse_device_numbers(data: bytes) -> Numbers:
    """Return the number of each device, from lines "<major>:<minor> <number>"."""
    return dict(_number(line) for line in _lines(data))


def parse_default_weight(data: bytes) -> int:
    """Return the group's own weight from its line "default <number>"; those of devices follow."""
    first = data.partition(b"\n")[0].decode(errors="replace")
    name, _, number = first.partition(" ")
    if name != "default" or not _NUMBER.fullmatch(number) or not data.endswith(b"\n"):
        raise ValueError(f"wanted a line 'default <weight>', found {shown(data)}")
    return int(number)


def weight_text() -> Text[int]:
    """The text form of a group's weight where devices may have weights of their own."""

    def of(value: int) -> str:
        return str(_whole(value))

    return Text(
        of,
        lambda data: str(parse_default_weight(data)),
        int,
        lambda text, now: f"default {text}",
    )


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights that a group has for single devices; its own, the line "default", is another.

    unset: what the kernel takes for "no weight of its own". A number is none where it is found.
    """

    low: int
    high: int
    unset: str = "default"

    def parse(self, data: bytes) -> Numbers:
        """Return the weight of each device, from lines "<major>:<minor> <number>"."""
        lines = data.splitlines(keepends=True)
        found = parse_device_numbers(b"".join(x for x in lines if not x.startswith(b"default ")))
        return {device: number for device, number in found.items() if str(number) != self.unset}

    def text(self) -> Text[Numbers]:
        """Their text form; a device that is not in it weighs what the group weighs."""

        def of(value: Mapping[str, int]) -> str:
            weights = {
                _device(device): _whole(number) for device, number in _bounded(value).items()
            }
            return sorted_lines(
                f"{device} {number}"
                for device, number in weights.items()
                if str(number) != self.unset
            )

        return by_line(of, self.parse, lambda device: f"{device} {self.unset}")

    def validate(self, text: str) -> bool:
        """Accept the text of weights in the range."""
        try:
            weights = self.parse(_file(text))
        except ValueError:
            return False
        return all(self.low <= weight <= self.high for weight in weights.values())

    def __str__(self) -> str:
        return f"{self.low} to {self.high} by device"


@dataclass(frozen=True, slots=True)
class CostWords:
    """Settings of iocost by device: words and numbers by name, as the kernel shows them.

    One whose first name has the value off is not set; the kernel goes on showing it.
    """

    names: tuple[str, ...]  # in the kernel's order
    off: str  # "<name>=<value>"

    def parse(self, data: bytes) -> DeviceWords:
        """Return the settings of each device that has some, from "<device> <name>=<value> ...".

        Names that are not known are left out, and left as they are.
        """
        found = {}
        for line in _lines(data):
            device, *words = line.split()
            if self.off not in words:
                found[_device(device)] = self._known(words)
        return {device: words for device, words in found.items() if words}

    def text(self) -> Text[DeviceWords]:
        """Their text form; off takes a device away."""

        def of(value: Mapping[str, Mapping[str, str]]) -> str:
            return sorted_lines(
                " ".join([_device(device), *self._ordered(words)])
                for device, words in _bounded(value).items()
                if words
            )

        return by_line(of, self.parse, lambda device: f"{device} {self.off}")

    def validate(self, text: str) -> bool:
        """Accept the words of the kernel, and numbers up to 20 digits with two decimals at most."""
        try:
            self.parse(_file(text))
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
                pairs[name] = _cost_word(value)
        return pairs

    def _ordered(self, words: Mapping[str, str]) -> Iterable[str]:
        if not isinstance(words, Mapping) or not words.keys() <= set(self.names):
            raise ValueError(f"wanted some of {', '.join(self.names)}, found {words!r:.60}")
        return [f"{name}={_cost_word(words[name])}" for name in self.names if name in words]


def number_text() -> Text[Numbers]:
    """The text form of numbers by device; "<major>:<minor> 0" takes one away."""

    def of(value: Mapping[str, int]) -> str:
        numbers = {_device(device): _whole(number) for device, number in _bounded(value).items()}
        return sorted_lines(f"{device} {number}" for device, number in numbers.items() if number)

    return by_line(of, parse_device_numbers, lambda device: f"{device} 0")


@dataclass(frozen=True, slots=True)
class Names:
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

        return by_line(of, self.parse, lambda device: self._line(device, {}))

    def validate(self, text: str) -> bool:
        """Accept the text of a value whose numbers are in the range of their names."""
        try:
            settings = self.parse(_file(text))
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
        return {name: _whole(number) for name, number in settings.items()}

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
            numbers = parse_device_numbers(_file(text))
        except ValueError:
            return False
        return all(number <= high for number in numbers.values())

    valid.__doc__ = f"Accept numbers by device, 0 (none) to {high}."
    return valid


def by_line(
    of: Callable[[T], str],
    parse: Callable[[bytes], T],
    gone: Callable[[str], str],
    order: Order = _order,
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

    return Text(of, now, lambda text: parse(_file(text)), content, by_line=True)


def _lines(data: bytes) -> list[str]:
    if data and not data.endswith(b"\n"):
        raise ValueError(f"wanted lines and a newline, found {shown(data[-60:])} at the end")
    lines = data.decode().splitlines()
    names = list(map(_name, lines))
    if len(lines) > MOST_DEVICES or len(set(names)) != len(names):
        raise ValueError(f"wanted at most {MOST_DEVICES} devices, each once, found {shown(data)}")
    return lines


def _number(line: str) -> tuple[str, int]:
    device, _, number = line.partition(" ")
    if not _NUMBER.fullmatch(number):
        raise ValueError(f"wanted '<major>:<minor> <number>', found {line!r:.60}")
    return _device(device), int(number)


def _device(text: object) -> str:
    if not isinstance(text, str) or not _DEVICE.fullmatch(text):
        raise ValueError(f'wanted a device as "<major>:<minor>", found {text!r:.60}')
    return text


def _name(line: str) -> str:
    return line.partition(" ")[0]


def sorted_lines(lines: Iterable[str], order: Order = _order) -> str:
    """Return lines in the order of their first words."""
    return "\n".join(sorted(lines, key=lambda line: order(_name(line))))


def _file(text: str) -> bytes:
    return f"{text}\n".encode() if text else b""


def _cost_word(value: object) -> str:
    if not isinstance(value, str) or not _COST_WORD.fullmatch(value):
        raise ValueError(f"wanted auto, user, linear or a number, found {value!r:.60}")
    return value


def _whole(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"wanted a whole number from 0, found {number!r:.60}")
    return number


def _is_number_or_max(text: str) -> bool:
    return text == "max" or bool(_NUMBER.fullmatch(text))


def _bounded(value: Mapping[str, T]) -> Mapping[str, T]:
    if not isinstance(value, Mapping) or len(value) > MOST_DEVICES:
        raise ValueError(f"wanted values by device, {MOST_DEVICES} at most, found {value!r:.60}")
    return value
