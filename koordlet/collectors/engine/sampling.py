"""One sampling pass: all collectors that are due, in a fixed order, isolated from each other."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from koord.api.slo.nodeslo import NodeSLO
from koord.util.clock import Clock, Stamp, stamp
from koord.util.health import PartHealth
from koord.util.logs import get_logger
from koordlet.collectors.engine.base import Collector
from koordlet.collectors.engine.metrics import CollectorMetrics
from koordlet.collectors.engine.reader import Reader
from koordlet.collectors.engine.rounds import Round, RoundOutcome, Rounds
from koordlet.metriccache.kinds import Cadence
from koordlet.metriccache.sample import Sample
from koordlet.statesinformer.model import PodMeta

log = get_logger("koordlet.collectors")


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingContext:
    """The inputs of the pass. All of them may be called on any thread."""

    enabled: Callable[[str], bool]  # whether a feature gate is on
    pods: Callable[[], tuple[PodMeta, ...]]
    slo: Callable[[], NodeSLO | None]
    append: Callable[[Stamp, Iterable[Sample]], object]  # stores samples


class SamplingPass:
    """Runs collectors. One thread at a time; families and health may be asked on any."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        periods: Mapping[Cadence, float],
        context: SamplingContext,
        clock: Clock,
        metrics: CollectorMetrics,
    ) -> None:
        self._rounds = [Rounds(c, periods[c.cadence], metrics) for c in collectors]
        self._context = context
        self._clock = clock
        self._metrics = metrics
        self._running: Rounds | None = None

    def run(self, due: Collection[Cadence], reader: Reader) -> None:
        """Run the collectors of these cadences that are switched on.

        Raises:
            GivenUp: the calling thread was given up while it waited for the kernel.
        """
        started = self._clock.monotonic()
        pods = tuple(pod for pod in self._context.pods() if not pod.pod.finished)
        reader.begin(stamp(self._clock), pods, self._context.slo())
        for rounds in self._rounds:
            if not self._is_on(rounds.collector):
                rounds.disable()
            elif rounds.collector.cadence in due:
                rounds.enable(started)
                self._run_one(rounds, reader)
        self._running = None
        reader.finish(self._metrics)
        self._metrics.pass_seconds.observe(self._clock.monotonic() - started)

    def blame(self, error: str) -> None:
        """Count as late the round of a thread that was given up."""
        rounds, self._running = self._running, None
        if rounds is not None:
            now = self._clock.monotonic()
            rounds.record(Round(RoundOutcome.LATE, error, now, rounds.period, returned=False))

    def sources(self) -> list[Collector]:
        """The collectors whose latest figures still count: what a scrape asks for families."""
        now = self._clock.monotonic()
        return [rounds.collector for rounds in self._rounds if rounds.fresh(now)]

    def health(self) -> dict[str, PartHealth]:
        """Health by collector name, of those that are switched on."""
        now = self._clock.monotonic()
        return {r.collector.name: r.health(now) for r in self._rounds if r.is_on}

    def _is_on(self, collector: Collector) -> bool:
        return not collector.gates or any(map(self._context.enabled, collector.gates))

    def _run_one(self, rounds: Rounds, tick: Reader) -> None:
        self._running = rounds
        before = self._clock.monotonic()
        tick.start_round()
        try:
            samples = list(rounds.collector.collect(tick))
            self._context.append(tick.at, samples)
        except Exception as err:  # one broken collector must not stop the others
            now = self._clock.monotonic()
            rounds.record(Round(RoundOutcome.FAILED, repr(err), now, now - before, returned=False))
            return
        outcome, error = tick.outcome(sampled=bool(samples))
        now = self._clock.monotonic()
        if now - before > rounds.period and outcome is RoundOutcome.OK:
            outcome, error = RoundOutcome.LATE, f"took {now - before:.3f} s of {rounds.period:g} s"
        rounds.record(Round(outcome, error, now, now - before))
