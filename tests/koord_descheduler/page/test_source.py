"""What the descheduler gives its page."""

import json
from dataclasses import replace

import pytest

from koord.cluster.facts import ReportedUsage
from koord.util.health import Health
from koord.util.simulatedclock import SimulatedClock
from koord_descheduler import page as source
from koord_descheduler.config import EvictionLimits, default_configuration
from koord_descheduler.framework.evictor import Action, Decisions, NodeDecision, PodDecision
from koord_descheduler.ledger.entries import Entry, Outcome, Pause, WorkloadRef
from koord_descheduler.page import MAX_ENTRIES, DeschedulerPage, PageSources
from tests.support.descheduler.shipped_plugins import IN_TREE

OWN = {"profile": "p", "plugin": "LowNodeLoad"}
WEB = WorkloadRef("Deployment", "shop", "web", "u")


def judged(node: str, usage: float, verdict: str) -> NodeDecision:
    facts = {"cpu_usage_percent": usage, "cpu_low_percent": 45.0, "cpu_high_percent": 75.0}
    return NodeDecision(**OWN, node=node, verdict=verdict, reason=f"cpu {usage}%", facts=facts)


def chosen(pod: str, action: Action) -> PodDecision:
    return PodDecision(
        **OWN, pod=pod, node="n2", action=action, reason="<b>", candidates=("n1", "n3", "n4", "n5")
    )


def entry(number: int) -> Entry:
    return Entry(
        pod=f"shop/web-{number}",
        uid=f"u{number}",
        node="n2",
        workload=WEB,
        at=float(number),
        predicted=ReportedUsage(1.0, 1024.0),
        outcome=Outcome.RELIEVED,
    )


class Bench:
    """A page, and what it is made of."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.decisions = Decisions()
        self.is_leader = True
        self.entries: list[Entry] = []
        self.pauses: list[Pause] = []
        limits = EvictionLimits(per_node=2, total=20)
        default = default_configuration(IN_TREE).configuration
        configuration = replace(default, limits=limits, dry_run=True)
        sources = PageSources(
            health=Health(),
            decisions=self.decisions,
            is_leader=lambda: self.is_leader,
            configuration=lambda: configuration,
            entries=lambda: tuple(self.entries),
            pauses=lambda: tuple(self.pauses),
        )
        self.page = DeschedulerPage(sources, self.clock)

    def cycle(self, *decisions: NodeDecision | PodDecision) -> None:
        self.clock.tick(60.0)
        self.decisions.begin(self.clock.wall())
        self.decisions.publish(lambda: decisions)

    async def reconcile(self) -> dict:
        """All sections as a page has them."""
        self.clock.tick(1.0)
        answer = await self.page.snapshot()
        assert answer["whole"] is True
        return json.loads(json.dumps(answer["sections"], allow_nan=False))


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_before_the_first_cycle(bench: Bench):
    sections = await bench.reconcile()
    assert (sections["cycles"], sections["moves"], sections["maps"]) == ([], [], [])
    assert sections["ledger"] == {"count": 0, "entries": [], "pauses": []}
    assert sections["state"]["limits"] == {"per_node": 2, "per_namespace": None, "total": 20}
    assert sections["state"]["leads"] is sections["state"]["dry_run"] is True


async def test_a_cycle_as_a_map_and_as_moves(bench: Bench):
    """A node without figures is null, never zero; pods that stay are only counted."""
    unknown = NodeDecision(**OWN, node="n9", verdict="left alone", reason="its NodeMetric is old")
    bench.cycle(
        judged("n2", 90.04, "high"),
        judged("n1", 12.0, "low"),
        unknown,
        chosen("shop/a", Action.EVICT),
        chosen("shop/b", Action.STAY),
        chosen("shop/c", Action.REFUSED),
    )
    sections = await bench.reconcile()

    [found] = sections["maps"]
    assert found["t"] == sections["cycles"][0]["t"]
    assert (found["plugin"], found["nodes"]) == ("p/LowNodeLoad", ["n1", "n2", "n9"])
    assert found["verdicts"] == ["low", "high", "left alone"]
    assert found["resources"]["cpu"] == {
        "usage": [12.0, 90.0, None],
        "low": [45.0, 45.0, None],
        "high": [75.0, 75.0, None],
    }
    assert [(one["pod"], one["action"]) for one in sections["moves"]] == [
        ("shop/a", "evict"), ("shop/c", "refused"),
    ]  # fmt: skip
    assert sections["moves"][0]["to"] == ["n1", "n3", "n4"]
    [cycle] = sections["cycles"]
    assert cycle["nodes"] == {"high": 1, "low": 1, "left alone": 1}
    assert cycle["pods"] == {"evict": 1, "stay": 1, "refused": 1}


async def test_the_newest_cycle_is_read_first_and_each_once(bench: Bench, monkeypatch):
    """Reading takes a while with many nodes, so a look reads one."""
    reads: list[float] = []
    read = source.summarize_cycle

    def counted(cycle):
        reads.append(cycle.began)
        return read(cycle)

    monkeypatch.setattr("koord_descheduler.page.summarize_cycle", counted)
    for number in range(3):
        bench.cycle(judged("n1", float(number), "low"))

    looks = [await bench.reconcile() for _ in range(5)]

    assert reads == sorted(reads, reverse=True)
    assert len(reads) == 3
    assert [len(one["cycles"]) for one in looks] == [1, 2, 3, 3, 3]
    assert looks[0]["maps"][0]["resources"]["cpu"]["usage"] == [2.0]
    bench.decisions.publish(lambda: [chosen("shop/late", Action.EVICT)])  # the cycle goes on
    assert (await bench.reconcile())["moves"][0]["pod"] == "shop/late"


async def test_an_old_map_says_how_old_it_is(bench: Bench):
    """No plugin has judged nodes since."""
    bench.cycle(judged("n1", 90.0, "high"))
    began = bench.clock.wall()
    await bench.reconcile()
    bench.cycle()
    sections = await bench.reconcile()
    assert sections["maps"][0]["t"] == began < sections["cycles"][0]["t"]


async def test_what_has_not_changed_is_not_sent_again(bench: Bench):
    bench.cycle(judged("n1", 12.0, "low"))
    bench.clock.tick(1.0)
    first = await bench.page.snapshot()
    bench.clock.tick(1.0)
    second = await bench.page.changes(first["now"])
    bench.is_leader = False
    bench.clock.tick(1.0)
    third = await bench.page.changes(second["now"])

    assert second["sections"] == {}
    assert set(third["sections"]) == {"state"}
    assert third["sections"]["state"]["leads"] is False


async def test_large_clusters_are_bounded_and_say_so(bench: Bench, monkeypatch):
    monkeypatch.setattr(source, "MAX_NODES", 3)
    monkeypatch.setattr(source, "MAX_MOVES", 2)
    bench.cycle(
        *(judged(f"n{number}", 1.0, "low") for number in range(5)),
        *(chosen(f"shop/{number}", Action.EVICT) for number in range(5)),
    )
    sections = await bench.reconcile()
    assert (len(sections["maps"][0]["nodes"]), sections["maps"][0]["left_out"]) == (3, 2)
    assert (len(sections["moves"]), sections["cycles"][0]["left_out"]) == (2, 3)


async def test_the_ledger_newest_first_and_pauses_that_last(bench: Bench):
    bench.entries = [entry(number) for number in range(MAX_ENTRIES + 5)]
    now = bench.clock.wall()
    bench.pauses = [
        Pause(workload=WEB, strikes=2, began=0.0, until=now + 100),
        Pause(workload=WEB, strikes=1, began=0.0, until=now - 1),
    ]
    ledger = (await bench.reconcile())["ledger"]

    assert ledger["count"] == MAX_ENTRIES + 5
    assert len(ledger["entries"]) == MAX_ENTRIES
    assert ledger["entries"][0]["pod"] == f"shop/web-{MAX_ENTRIES + 4}"
    assert ledger["entries"][0]["predicted"] == {"cores": 1.0, "bytes": 1024.0}
    assert ledger["entries"][0]["measured"] is None
    assert [one["strikes"] for one in ledger["pauses"]] == [2]


async def test_more_about_a_node_or_a_pod(bench: Bench):
    bench.cycle(judged("n2", 90.0, "high"), chosen("shop/a", Action.EVICT))
    about = await bench.page.detail("node", "n2")
    assert about is not None
    [cycle] = about["cycles"]
    assert (cycle["nodes"][0]["verdict"], cycle["pods"][0]["pod"]) == ("high", "shop/a")
    assert (await bench.page.detail("pod", "shop/a"))["cycles"][0]["nodes"] == []


@pytest.mark.parametrize(("kind", "name"), [("secret", "n1"), ("node", ""), ("pod", "x" * 600)])
async def test_questions_without_an_answer(bench: Bench, kind: str, name: str):
    assert await bench.page.detail(kind, name) is None
