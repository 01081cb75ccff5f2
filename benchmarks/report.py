"""One NodeMetric report at 300 pods from full caches."""

import random
import statistics
import time
import uuid
from collections.abc import Callable, Iterator

from benchmarks import history
from benchmarks.table import Row
from koord.api.nodemetric import DEFAULT_SPEC
from koordlet.plugin.testing import SimulatedClock, make_pod
from koordlet.reporter.status import ReportInputs, build_status, make_report
from koordlet.statesinformer.podmeta import PodMeta

PODS = 300


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time of the whole report and of its encoding, beside adding up as many floats."""
    clock = SimulatedClock(boottime=10_000.0)
    cache = history.open_cache(None, "benchmark", clock)
    pods = tuple(_pod(number) for number in range(PODS))
    history.fill(cache, clock, pods)
    snapshot = ReportInputs(
        spec=DEFAULT_SPEC,
        pods=pods,
        host_applications=(),
        now=clock.boottime() - 1.0,  # of the newest sample
        oldest=2.0,
    )
    status = build_status(cache, snapshot)
    if len(status.pods) != PODS or any(u.p99 is None for u in status.aggregated_node_usages):
        raise RuntimeError("the caches are not full")

    count = round(PODS * 2 * 300 + 4 * sum(DEFAULT_SPEC.durations))
    numbers = [random.random() for _ in range(count)]
    rounds = 5 if smoke else 30
    whole = _cpu_time(
        lambda: make_report("node", DEFAULT_SPEC, build_status(cache, snapshot)), rounds
    )
    encoding = _cpu_time(lambda: make_report("node", DEFAULT_SPEC, status), rounds)
    adding = _cpu_time(lambda: _add(numbers), rounds)
    reference = f"adding {count // 1000}k floats in a loop"
    yield Row(f"report, {PODS} pods", whole, "ms", 30.0, adding, reference)
    yield Row(f"of that, encoding {PODS} pods", encoding, "ms", None, whole, "the whole report")
    cache.close()


def _pod(number: int) -> PodMeta:
    return make_pod(f"pod-{number}", uid=str(uuid.UUID(int=number)))


def _add(numbers: list[float]) -> float:
    total = 0.0
    for number in numbers:
        total += number
    return total


def _cpu_time(work: Callable[[], object], rounds: int) -> float:
    """Median milliseconds of CPU time."""
    took = []
    for _ in range(rounds):
        start = time.thread_time()
        work()
        took.append((time.thread_time() - start) * 1e3)
    return statistics.median(took)
