"""Failed kernel reads: counted each time, logged when they start and when they end."""

from collections import Counter
from collections.abc import Callable

from koord.util.logs import LogState, get_logger
from koordlet.collectors.engine.metrics import CollectorMetrics
from koordlet.host.descriptors import DescriptorStats
from koordlet.host.errors import Hung, KernelFileError, Unsupported, Vanished

log = get_logger("koordlet.collectors")

_OUTCOMES: tuple[tuple[type[KernelFileError], str], ...] = (
    (Unsupported, "unsupported"),
    (Vanished, "vanished"),
    (Hung, "hung"),
    (KernelFileError, "failed"),
)


class ReadErrors:
    """Of one tick after the other. Names are those of resources or calls, not of single groups:

    what fails for one pod often fails for all, and one line in the log is enough.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._failed: dict[str, KernelFileError] = {}
        self._calls: set[str] = set()
        self._lasting: dict[str, LogState] = {}
        self._reads = 0

    def note(self, name: str, err: KernelFileError) -> None:
        """Note an error. Only the unexpected ones are going to be logged."""
        outcome = next(outcome for kind, outcome in _OUTCOMES if isinstance(err, kind))
        self._counts[outcome] += 1
        if outcome == "failed":
            self._failed[name] = err

    def went_well(self, call: str) -> None:
        """Note that a call returned."""
        self._calls.add(call)

    def report(
        self, metrics: CollectorMetrics, stats: DescriptorStats, well: Callable[[], set[str]]
    ) -> None:
        """Count and log the outcome of a tick. well returns the resources that were read well."""
        metrics.held_descriptors.set(stats.held)
        metrics.reads.labels("ok").inc(stats.reads - self._reads)
        self._reads = stats.reads
        for outcome, count in self._counts.items():
            metrics.reads.labels(outcome).inc(count)
        for name, err in self._failed.items():
            state = self._lasting.setdefault(name, LogState(log))
            state.failed("kernel_read.failed", what=name, error=str(err))
        if self._lasting:
            for name in self._lasting.keys() & ((well() | self._calls) - self._failed.keys()):
                self._lasting.pop(name).ended("kernel_read.recovered", what=name)
        self._counts.clear()
        self._failed.clear()
        self._calls.clear()
