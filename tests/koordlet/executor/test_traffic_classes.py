"""Traffic classes of a network interface as claims see them: made, changed, restored.

In the kernel, in a network namespace of each test's own.
"""

import asyncio
import os
import signal
import subprocess
from functools import partial

import pytest

from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claimmanager import ClaimManager
from koordlet.executor.claims.claim import (
    RELEASE,
    Claim,
    ClaimScope,
    ClaimState,
    DesiredValue,
    Key,
    Target,
)
from koordlet.executor.claims.table import ObservedValue, claimed_value_json
from koordlet.executor.journal import Journal, ignore_step
from koordlet.executor.kernel.values import KernelValues
from koordlet.executor.kernel.view import InlineWorker
from koordlet.executor.kernel.writer import Writer
from koordlet.host.errors import Unsupported, Vanished
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.net.netfiles import is_interface_name
from koordlet.host.net.tc.kernel import KernelTraffic
from koordlet.host.net.tc.objects import TrafficReader, TrafficWriter
from koordlet.host.objects import TRAFFIC_TREES
from koordlet.host.resource import ABSENT, Level
from koordlet.host.resources import TRAFFIC_CLASSES
from koordlet.plugin.testing import FakeHost, SimulatedClock
from tests.support.node.network_namespace import needs_namespaces, own_network, tc

pytestmark = needs_namespaces

NODE = (
    "default 2; class 1 below 0 rate 125000000 ceil 125000000 prio 0; "
    "class 2 below 1 rate 112500000 ceil 125000000 prio 1; "
    "class 4 below 1 rate 12500000 ceil 62500000 prio 3"
)
PODS = f"{NODE}; from 10.0.0.7 class 4; from fd00::7 class 4"
VA = Target.interface("va")
KEY = Key(VA, TRAFFIC_CLASSES)
RELEASED = DesiredValue(KEY, RELEASE)


def wanted(text):
    return DesiredValue(KEY, text, owners=("test",))


class Bench:
    def __init__(self, root):
        self.fake = FakeHost(root / "host", 2)
        self.traffic = KernelTraffic()
        self.clock = SimulatedClock()
        self.run_dir = root / "run"
        self.run_dir.mkdir(exist_ok=True)

    def writer(self, step=ignore_step):
        reader = TrafficReader(self.fake.paths, self.traffic)
        host = Host(self.fake.paths, Descriptors(0), objects={TRAFFIC_TREES: reader})
        object_writers = {TRAFFIC_TREES: TrafficWriter(host.paths, self.traffic)}
        journal = Journal(OwnedDirectory.open(self.run_dir), "boot")
        return Writer(host, journal, self.clock, values=KernelValues(host, step, object_writers))

    @property
    def there(self):
        return self.traffic.read("va").decode().strip()


@pytest.fixture
def bench(tmp_path):
    with own_network():
        yield Bench(tmp_path)


def test_what_was_made_for_a_claim_is_deleted_with_it(bench):
    before = tc("qdisc show dev va")
    writer = bench.writer()

    [made] = writer.apply([wanted(NODE)])
    assert (made.state, made.value, made.original) == (ClaimState.IN_FORCE, NODE, ABSENT)
    [again] = writer.apply([wanted(NODE)])
    assert (again.state, again.wrote) == (ClaimState.IN_FORCE, False)
    [changed] = writer.apply([wanted(PODS)])
    assert (changed.state, changed.original) == (ClaimState.IN_FORCE, ABSENT)
    assert bench.there == PODS

    [gone] = writer.apply([RELEASED])

    assert (gone.state, gone.value) == (ClaimState.GONE, ABSENT)
    assert tc("qdisc show dev va") == before
    assert not list(writer.ledger)


@pytest.mark.parametrize("at", range(1, 10))
def test_after_kill_9_at_any_step_the_journal_alone_restores(bench, at):
    """Before the journal, between it and the write, after the write, amid a release."""
    child = os.fork()
    if child == 0:
        steps = iter(range(1, 100))

        def die(name):
            if next(steps) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        writer = bench.writer(die)
        writer.apply([wanted(NODE)])
        writer.apply([wanted(PODS)])
        writer.apply([RELEASED])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)

    writer = bench.writer()
    writer.restore(writer.unclaimed())

    assert bench.there == ABSENT
    assert not writer.unclaimed()


@pytest.mark.parametrize("at", range(1, 10))
@pytest.mark.parametrize("before", [ABSENT, NODE])
def test_kill_9_amid_the_messages_of_a_change_is_restored(bench, before, at):
    """A tree of which the kernel has a part only: the next writer finds that it is half-made."""
    if before != ABSENT:
        bench.writer().apply([wanted(before)])
    child = os.fork()
    if child == 0:
        bench.traffic = KernelTraffic(partial(killed_at, bench.traffic._connect, iter(range(at))))
        changed = PODS.replace("2 below 1 rate 1", "2 below 1 rate ")
        writer = bench.writer()
        writer.apply([wanted(changed)])
        writer.apply([wanted(NODE)])
        writer.apply([RELEASED])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)

    bench.traffic = KernelTraffic()
    writer = bench.writer()
    writer.restore(writer.unclaimed())

    assert bench.there == ABSENT
    assert "htb" not in tc("qdisc show dev va")
    assert not writer.unclaimed()
    [made] = writer.apply([wanted(NODE)])
    assert (made.state, made.original, bench.there) == (ClaimState.IN_FORCE, ABSENT, NODE)


def killed_at(connect, left):
    """A connection whose process is killed before the message after those that are left."""
    route = connect()
    change = route.tc

    def call(*arguments, **options):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return change(*arguments, **options)

    route.tc = call
    return route


def test_a_foreign_root_is_a_failed_claim_with_the_reason(bench):
    tc("qdisc add dev va root handle 1: tbf rate 1mbit burst 10k latency 50ms")
    before = tc("qdisc show dev va")
    writer = bench.writer()

    [failed] = writer.apply([wanted(NODE)])

    assert failed.state is ClaimState.FAILED
    assert "it is another agent's" in failed.message
    assert not list(writer.ledger)
    assert tc("qdisc show dev va") == before


def test_a_foreign_root_over_ours_is_not_replaced_in_a_restore(bench):
    writer = bench.writer()
    writer.apply([wanted(NODE)])
    tc("qdisc replace dev va root handle 1: tbf rate 1mbit burst 10k latency 50ms")

    writer.apply([RELEASED])

    assert bench.there == "foreign tbf"


def test_another_interface_of_the_same_name_is_not_ours(bench):
    writer = bench.writer()
    writer.apply([wanted(NODE)])
    subprocess.run(["ip", "link", "del", "va"], check=True, timeout=20)
    subprocess.run(["ip", "link", "add", "va", "type", "veth"], check=True, timeout=20)
    bench.traffic.write("va", bench.traffic.identity("va"), PODS.encode())

    writer.apply([RELEASED])

    assert bench.there == PODS
    assert not list(writer.ledger)


def test_an_interface_that_is_gone_ends_the_claim(bench):
    writer = bench.writer()
    writer.apply([wanted(NODE)])
    subprocess.run(["ip", "link", "del", "va"], check=True, timeout=20)

    [gone] = writer.apply([wanted(PODS)])

    assert gone.state is ClaimState.GONE


def test_dry_run_makes_nothing_and_explain_shows_what_it_would(bench):
    async def story():
        manager = ClaimManager(
            bench.writer(), InlineWorker(), bench.clock, dry_run=lambda _: asyncio.sleep(0, True)
        )
        manager.declare("test", (ClaimScope(TRAFFIC_CLASSES, Level.INTERFACE),))
        claim = Claim(target=VA, resource=TRAFFIC_CLASSES, value=NODE, reason="NodeSLO")
        outcome = await manager.claim("test", claim)
        assert outcome.state is ClaimState.WOULD
        [shown] = manager.snapshot()
        found = claimed_value_json(shown, ObservedValue(ABSENT, 0.0))
        assert (found["target"], found["wanted"], found["value"]) == ("interface va", NODE, ABSENT)

    asyncio.run(story())
    assert bench.there == ABSENT


@pytest.mark.parametrize(
    ("place", "level", "original"),
    [
        ("../va", "interface", ABSENT),
        ("", "interface", ABSENT),
        ("x" * 16, "interface", ABSENT),
        ("va\n", "interface", ABSENT),
        ("va", "node", ABSENT),
        ("va", "resctrl", ABSENT),
        ("va", "interface", "foreign tbf"),
        ("va", "interface", "altered"),
        ("va", "interface", "default 1"),
        ("va", "interface", f"{NODE}\n{NODE}"),
    ],
)
def test_hostile_records_of_a_journal_are_refused_by_name(bench, place, level, original):
    writer = bench.writer()
    writer.apply([wanted(NODE)])
    journal = Journal(OwnedDirectory.open(bench.run_dir), "boot")
    [record] = journal.records.values()
    record.place, record.level, record.original = place, level, original
    journal.begin([record])

    found = bench.writer()

    assert len(found.ledger.refused) == 1
    assert found.unclaimed() == [KEY]


def test_a_container_has_no_interface_of_the_node(tmp_path):
    """Its own interfaces are never taken for the node's."""
    fake = FakeHost(tmp_path / "host", 2)
    host = Host(fake.paths, Descriptors(0))

    with pytest.raises(Unsupported, match="network namespace"):
        host.read(TRAFFIC_CLASSES, "lo")
    with pytest.raises(Unsupported, match="network namespace"):
        TrafficWriter(host.paths).identity(KEY)


def test_an_unknown_interface_has_vanished(bench):
    with pytest.raises(Vanished, match="nope"):
        TrafficReader(bench.fake.paths, bench.traffic).read("nope")


@pytest.mark.parametrize("name", ["eth0", "veth-1.2@x", "a" * 15, "enp0s3"])
def test_names_of_interfaces(name):
    assert is_interface_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "all", "default", "a/b", "a b", "a:1", "é", "\x7f"]
)
def test_names_that_no_interface_has(name):
    assert not is_interface_name(name)
