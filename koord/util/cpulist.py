"""Lists of CPUs or NUMA nodes as the kernel writes them: "0-3,8"."""

from collections.abc import Iterable

MAX_RANGE_END = 4096
_MOST = 16 * MAX_RANGE_END  # numbers that a list may name, repetitions included


def parse_cpulist(text: str) -> frozenset[int]:
    """Return the numbers of a list. The empty text is the empty set; "5-3" holds nothing.

    Raises:
        ValueError: malformed, a range that ends above 4096, or far more numbers than any machine
            has CPUs.
    """
    numbers: set[int] = set()
    named = 0
    for item in text.split(",") if text else ():
        first, dash, last = item.partition("-")
        run = _range(first, last, text) if dash else (_number(first, text),)
        named += len(run)
        if named > _MOST:
            raise ValueError(f"wanted at most {_MOST} numbers, found more: {text[:60]!r}")
        numbers.update(run)
    return frozenset(numbers)


def parse_cpulist_file(data: bytes) -> frozenset[int]:
    """Return the numbers of a file that holds nothing but a list."""
    if not data.endswith(b"\n"):
        raise ValueError(f"wanted a list and a newline, found {data[:60]!r}")
    return parse_cpulist(data.decode("ascii").strip("\n"))


def format_cpulist(numbers: Iterable[int]) -> str:
    """Return the shortest list: ascending, with neighbours as ranges. "" for the empty set."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def _range(first: str, last: str, text: str) -> range:
    end = _number(last, text)
    if end > MAX_RANGE_END:
        raise ValueError(f"wanted ranges up to {MAX_RANGE_END}, found {text[:60]!r}")
    return range(_number(first, text), end + 1)


def _number(digits: str, text: str) -> int:
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f'wanted a list like "0-3,8", found {text[:60]!r}')
    return int(digits)
