"""Core scheduling cookies as claims see them, on a fake prctl; and this kernel's own answer."""

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.ownedfiles import OwnedDirectory
from koordlet.doctor.probes import core_scheduling_problem
from koordlet.executor.claims.claim import ClaimState, DesiredValue, Key, Target
from koordlet.executor.journal import Journal, ignore_step
from koordlet.executor.kernel.values import KernelValues
from koordlet.executor.kernel.writer import Writer
from koordlet.host.cpu_scheduler import (
    GET,
    NEW_COOKIE,
    CookieReader,
    CookieWriter,
    is_cookie,
    parse_cookie,
    prctl,
)
from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.objects import COOKIES
from koordlet.host.paths import HostPaths
from koordlet.host.resource import Level
from koordlet.host.resources import CORE_SCHED_COOKIE
from koordlet.plugin.testing import FakeHost, SimulatedClock
from tests.support.node.fake_cookies import FIRST, FakeCookies

STAT = "{} (a ) b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {} 0 0\n"


class Killed(BaseException):
    """The daemon ends here."""


class Bench:
    """Processes 11 to 14, and writers one after the other with one journal."""

    def __init__(self, root):
        self.fake = FakeHost(root / "host", 2)
        self.kernel = FakeCookies(11, 12, 13, 14)
        self.run_dir = root / "run"
        self.run_dir.mkdir()
        for pid in self.kernel.cookies:
            self.fake.write(f"proc/{pid}/stat", STAT.format(pid, 100 + pid))

    def writer(self, step=ignore_step):
        reader = CookieReader(self.fake.paths, self.kernel)
        host = Host(self.fake.paths, Descriptors(0), objects={COOKIES: reader})
        values = KernelValues(host, step, {COOKIES: CookieWriter(host.paths, self.kernel)})
        journal = Journal(OwnedDirectory.open(self.run_dir), "boot")
        return Writer(host, journal, SimulatedClock(), values=values)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def key(pid, start=None):
    return Key(Target(Level.PROCESS, str(pid), 100 + pid if start is None else start),
               CORE_SCHED_COOKIE)  # fmt: skip


def wants(pid, cookie, start=None):
    return DesiredValue(key(pid, start), cookie, owners=("test",), original=0)


def test_a_new_cookie_is_shared_and_everything_restored(bench):
    """By threads that end with it: that of the writer keeps none."""
    writer = bench.writer()

    [new] = writer.apply([wants(11, NEW_COOKIE)])
    assert (new.state, new.value) == (ClaimState.IN_FORCE, FIRST)
    shared = writer.apply([wants(pid, FIRST) for pid in (11, 12, 13)])
    assert [one.state for one in shared] == [ClaimState.IN_FORCE] * 3
    assert bench.kernel.cookies == {11: FIRST, 12: FIRST, 13: FIRST, 14: 0}

    writer.restore(writer.ledger)
    assert set(bench.kernel.cookies.values()) == {0}
    assert bench.kernel.own == 0
    assert not list(writer.ledger)


def test_one_that_has_inherited_it_is_restored_too(bench):
    """Its original is what the claim says."""
    writer = bench.writer()
    writer.apply([wants(11, NEW_COOKIE)])
    bench.kernel.cookies[12] = FIRST

    [found] = writer.apply([wants(12, FIRST)])
    assert (found.state, found.wrote) == (ClaimState.IN_FORCE, False)
    writer.restore(writer.ledger)
    assert set(bench.kernel.cookies.values()) == {0}


@pytest.mark.parametrize("crash", range(8))
def test_a_crash_at_any_step_leaves_no_mark(bench, crash):
    """Also between the making of a cookie and the record of its number."""
    steps = iter(range(100))

    def step(_):
        if next(steps) == crash:
            raise Killed

    writer = bench.writer(step)
    try:
        writer.apply([wants(11, NEW_COOKIE)])
        writer.apply([wants(11, FIRST), wants(12, FIRST)])
    except Killed:
        pass

    after = bench.writer()
    after.restore(after.unclaimed())
    assert set(bench.kernel.cookies.values()) == {0}
    assert not list(after.ledger)


def test_another_process_of_the_number_is_left_alone(bench):
    writer = bench.writer()
    [gone] = writer.apply([wants(11, NEW_COOKIE, start=5)])
    assert gone.state is ClaimState.GONE
    assert bench.kernel.calls == []


def test_a_cookie_that_has_ended_cannot_be_shared(bench):
    """Nothing is changed then, least of all cleared."""
    bench.kernel.cookies[12] = 7
    [failed] = bench.writer().apply([wants(12, FIRST)])
    assert failed.state is ClaimState.FAILED
    assert "wanted a process to take it over from, found none that has it" in failed.message
    assert bench.kernel.cookies[12] == 7


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENODEV])
def test_a_refusal_is_an_outcome(bench, number):
    bench.kernel.refuses = number
    [failed] = bench.writer().apply([wants(11, NEW_COOKIE)])
    assert failed.state is ClaimState.FAILED
    assert os.strerror(number) in failed.message


def test_a_thread_of_ours_with_a_cookie_shares_it_with_nobody(bench, monkeypatch):
    """As when koordlet itself was core scheduled: no process gets its cookie in place of none."""
    writer = bench.writer()
    writer.apply([wants(11, NEW_COOKIE)])
    monkeypatch.setattr(bench.kernel, "threads", type("All", (), {"get": lambda *_: 5})())
    [failed] = writer.restore(writer.ledger)
    assert failed.state is ClaimState.FAILED
    assert bench.kernel.cookies[11] == FIRST


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EINVAL, Unsupported),
        (errno.ENODEV, Unsupported),
        (errno.ESRCH, Vanished),
        (errno.EPERM, KernelFileError),
    ],
)
def test_what_the_kernel_says_to_a_look(bench, number, kind):
    bench.kernel.broken = number
    with pytest.raises(kind, match=os.strerror(number)):
        CookieReader(bench.fake.paths, bench.kernel).read("11")


def test_what_this_kernel_says():
    """Most have no core scheduling: then it is EINVAL or ENODEV, and the agent goes without."""
    reader = CookieReader(HostPaths.for_mode("hostMode"))
    problem = core_scheduling_problem(HostPaths.for_mode("hostMode"))
    if not problem:
        assert parse_cookie(reader.read("self")) == prctl(GET, 0)
        return
    with pytest.raises(Unsupported, match="CONFIG_SCHED_CORE") as raised:
        reader.read("self")
    assert problem == f"the kernel answers {raised.value.found!r}"
    assert raised.value.found in {os.strerror(errno.EINVAL), os.strerror(errno.ENODEV)}


@given(st.text())
def test_any_text_of_a_journal_is_a_cookie_or_refused(text):
    """A claim of a new one has nothing to be restored."""
    file = CORE_SCHED_COOKIE.files[1]
    if file.may_restore(text):
        assert 0 <= int(text) < 2**64
        assert is_cookie(text)
    assert not file.may_restore("new")
    assert file.may_restore("0")
