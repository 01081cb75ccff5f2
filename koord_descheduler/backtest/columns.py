"""NodeMetrics as rows of integers, and rows as few bytes. Pure.

A row is in micro-seconds, milli-cores and bytes, as the API has them, so nothing is rounded. It is
stored as its difference to the row before of the same layout, by planes of bytes: most are zero.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from koord.cluster.decoding import UsageReport
from koord.cluster.usage import AggregatedUsage, PodMetric, Usage
from koord.util.errors import InvalidObject

Row = NDArray[np.int64]

NONE = -(1 << 62)  # what a report does not say
_MOST = 1 << 61  # of an amount; a larger one is absurd, and counts as this
_HEAD = 7  # time; cpu and memory of node, system and host applications
_FIGURES = ("avg", "p50", "p90", "p95", "p99")
_OF_WINDOW = 2 * len(_FIGURES)


class Layout(Struct, frozen=True, array_like=True):
    """What the figures of a row are about."""

    node: str
    windows: tuple[float, ...]  # seconds, of the aggregated usages
    pods: tuple[tuple[str, str, str, str], ...]  # namespace, name, priority, qos

    @property
    def width(self) -> int:
        """Figures in a row."""
        return _HEAD + _OF_WINDOW * len(self.windows) + 2 * len(self.pods)


def layout_of(report: UsageReport) -> Layout:
    """The layout of a report."""
    return Layout(
        report.node,
        tuple(one.duration for one in report.aggregated),
        tuple((one.namespace, one.name, one.priority, one.qos) for one in report.pods),
    )


def to_row(report: UsageReport) -> Row:
    """The figures of a report."""
    time = report.update_time
    figures = [NONE if time is None else _bounded(time * 1e6)]
    _add(figures, report.usage)
    _add(figures, report.system_usage)
    _add(figures, report.host_usage)
    for window in report.aggregated:
        for name in _FIGURES:
            _add(figures, getattr(window, name))
    figures += [_bounded(one.usage.cores * 1000) for one in report.pods]
    figures += [_bounded(one.usage.memory_bytes) for one in report.pods]
    return np.array(figures, np.int64)


def to_report(layout: Layout, row: Row) -> UsageReport:
    """The report of a row."""
    figures: list[int] = row.tolist()
    pods, windows = len(layout.pods), len(layout.windows)
    first_pod = _HEAD + _OF_WINDOW * windows
    cores, memory = figures[first_pod : first_pod + pods], figures[first_pod + pods :]
    return UsageReport(
        node=layout.node,
        update_time=None if figures[0] == NONE else figures[0] / 1e6,
        usage=_usage(figures, 1),
        system_usage=_usage(figures, 3),
        host_usage=_usage(figures, 5),
        aggregated=tuple(
            AggregatedUsage(
                duration,
                *(
                    _usage(figures, _HEAD + _OF_WINDOW * at + 2 * one)
                    for one in range(len(_FIGURES))
                ),
            )
            for at, duration in enumerate(layout.windows)
        ),
        pods=tuple(
            PodMetric(
                name=name,
                namespace=namespace,
                usage=Usage(milli / 1000, float(amount)),
                priority=priority,
                qos=qos,
            )
            for (namespace, name, priority, qos), milli, amount in zip(
                layout.pods, cores, memory, strict=True
            )
        ),
    )


def pack(values: Row) -> bytes:
    """Integers as bytes that compress well: small ones of either sign are mostly zeros."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint8)
    return zigzag.reshape(-1, 8).T.tobytes()


def unpack(data: bytes) -> Row:
    """The integers of pack.

    Raises:
        InvalidObject: it is none of its results.
    """
    if len(data) % 8:
        raise InvalidObject("column of a record", wanted="whole integers", found=len(data))
    planes = np.frombuffer(data, np.uint8).reshape(8, -1)
    zigzag = np.ascontiguousarray(planes.T).view(np.uint64).ravel()
    return (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64)


def _add(figures: list[int], usage: Usage | None) -> None:
    if usage is None:
        figures += (NONE, NONE)
    else:
        figures += (_bounded(usage.cores * 1000), _bounded(usage.memory_bytes))


def _bounded(value: float) -> int:
    return max(-_MOST, min(_MOST, round(value)))


def _usage(figures: list[int], at: int) -> Usage | None:
    if figures[at] == NONE:
        return None
    return Usage(figures[at] / 1000, float(figures[at + 1]))
