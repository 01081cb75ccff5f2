"""A change of traffic classes that was rolled back, as its claim shows it."""

from contextlib import contextmanager

import pytest

from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claims.claim import RELEASE, ClaimState, DesiredValue, Key, Target
from koordlet.executor.journal import Journal, ignore_step
from koordlet.executor.kernel.values import KernelValues
from koordlet.executor.kernel.writer import Writer
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.net.guard.commit_confirm import CommitConfirmTraffic, PendingChangesFile
from koordlet.host.net.tc.kernel import KernelTraffic
from koordlet.host.net.tc.objects import TrafficReader, TrafficWriter
from koordlet.host.objects import TRAFFIC_TREES
from koordlet.host.resources import TRAFFIC_CLASSES
from koordlet.plugin.testing import FakeHost, SimulatedClock
from tests.support.node.network_namespace import needs_namespaces, own_network

pytestmark = needs_namespaces

GOOD = "default 1; class 1 below 0 rate 1000000 ceil 1000000 prio 0"
BAD = "default 1; class 1 below 0 rate 1000 ceil 1000 prio 0"
KEY = Key(Target.interface("va"), TRAFFIC_CLASSES)


class Server:
    """The API server, which is out of reach once an interface has BAD classes."""

    name = "the API server"

    def __init__(self, traffic):
        self._traffic = traffic

    def reachable(self, limit):
        return self._traffic.read("va") != f"{BAD}\n".encode()


@contextmanager
def writer_and_guard(root):
    """A writer whose interfaces are guarded, without the helper process around the guard."""
    with own_network():
        clock, kernel, paths = SimulatedClock(), KernelTraffic(), FakeHost(root / "host", 2).paths
        record = PendingChangesFile(OwnedDirectory.open(root / "state"), "boot")
        guard = CommitConfirmTraffic(kernel, Server(kernel), record, clock)
        host = Host(paths, Descriptors(0), objects={TRAFFIC_TREES: TrafficReader(paths, guard)})
        values = KernelValues(host, ignore_step, {TRAFFIC_TREES: TrafficWriter(host.paths, guard)})
        journal = Journal(OwnedDirectory.open(root / "run"), "boot")
        yield Writer(host, journal, clock, values=values), guard, clock


def pass_time(guard, clock, seconds):
    for _ in range(seconds):
        clock.tick(1.0)
        guard.check()


def wanted(text):
    return DesiredValue(KEY, text, owners=("test",))


@pytest.mark.parametrize("before", ["absent", GOOD])
def test_the_claim_has_failed_until_it_wants_something_else(tmp_path, before):
    """The kernel's own is in force meanwhile, each round says why, and nothing is left."""
    with writer_and_guard(tmp_path) as (writer, guard, clock):
        if before != "absent":
            writer.apply([wanted(before)])
            pass_time(guard, clock, 2)
        [made] = writer.apply([wanted(BAD)])
        assert made.state is ClaimState.IN_FORCE
        pass_time(guard, clock, 12)
        assert guard.read("va") == b"absent\n"

        # As with any value that is not what was set, the claim waits for a moment first.
        [waiting] = writer.apply([wanted(BAD)])
        assert waiting.state is ClaimState.WAITING
        for _ in range(3):
            clock.tick(400)
            [failed] = writer.apply([wanted(BAD)])
            assert failed.state is ClaimState.FAILED
            assert "rolled back at 20" in failed.message
            assert "because the API server could not be reached" in failed.message
        assert guard.read("va") == b"absent\n"

        [other] = writer.apply([wanted(GOOD)])
        assert other.state is ClaimState.IN_FORCE
        writer.apply([DesiredValue(KEY, RELEASE)])
        assert guard.read("va") == b"absent\n"
        assert not list(writer.ledger)
