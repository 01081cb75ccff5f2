"""Unconfirmed changes: confirmed, rolled back, refused, and handed to the next helper."""

import errno
import json
import socket
import struct
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koord.util.errors import InvalidObject
from koord.util.ownedfiles import OwnedDirectory
from koordlet.host.errors import KernelFileError
from koordlet.host.net.guard import program
from koordlet.host.net.guard.client import (
    Channel,
    ChannelError,
    HelperTraffic,
    api_server,
    error_message,
    parse_message,
    raise_error,
)
from koordlet.host.net.guard.commit_confirm import (
    CONFIRM_TIMEOUT,
    CommitConfirmState,
    CommitConfirmTraffic,
    PendingChange,
    PendingChangesFile,
    RolledBackChange,
    decode_state,
    encode_state,
    pending_change_of,
    stable_part,
)
from koordlet.host.net.guard.program import respond
from koordlet.host.net.tc.tree import ForeignQdisc, TrafficRefused, no_such_interface
from koordlet.plugin.testing import SimulatedClock

A = "default 1; class 1 below 0 rate 1000 ceil 2000 prio 0"
B = "default 1; class 1 below 0 rate 3000 ceil 4000 prio 0"
POD = "; from 10.0.0.7 class 1"


class Interfaces:
    """A TrafficControl in memory. broken: contents with which nothing can be reached."""

    name = "the API server"

    def __init__(self, *broken):
        self.contents = {"eth0": "absent", "eth1": "absent"}
        self.numbers = {"eth0": 2, "eth1": 3}
        self.broken = set(broken)
        self.network = True
        self.error = None

    def read(self, interface):
        found = self.contents.get(interface)
        return None if found is None else f"{found}\n".encode()

    def identity(self, interface):
        if interface not in self.numbers:
            raise no_such_interface(interface)
        return self.numbers[interface]

    def veth_peer(self, pid):
        return f"eth{pid % 2}"

    def supports_cgroup_map(self):
        return True

    def write(self, interface, identity, content):
        if self.error:
            raise self.error
        if self.identity(interface) != identity:
            raise no_such_interface(interface)
        self.contents[interface] = content.decode().removesuffix("\n")

    def reachable(self, limit):
        assert 0 < limit <= 2
        shapes = {stable_part(each) for each in self.contents.values()}
        return self.network and not shapes & set(map(stable_part, self.broken))


class Memory:
    """A Record that outlives helpers."""

    def __init__(self):
        self.data, self.taken, self.error = None, False, None

    def hold(self):
        return not self.taken

    def load(self, now):
        return CommitConfirmState() if self.data is None else decode_state(self.data, "b", now)

    def save(self, state):
        if self.error:
            raise self.error
        self.data = encode_state(state, "b")


class Bench:
    """A guard with all that it needs."""

    def __init__(self, *broken):
        self.interfaces, self.record = Interfaces(*broken), Memory()
        self.clock = SimulatedClock()
        self.restart()

    def restart(self):
        self.guard = CommitConfirmTraffic(self.interfaces, self.interfaces, self.record, self.clock)

    def write(self, text, interface="eth0"):
        number = self.interfaces.numbers[interface]
        self.guard.write(interface, number, f"{text}\n".encode())

    def pass_time(self, seconds):
        for _ in range(int(seconds)):
            self.clock.tick(1.0)
            self.guard.check()

    @property
    def shown(self):
        return self.interfaces.contents["eth0"]


def test_a_good_change_is_confirmed():
    """By the first look after it, and then nothing is due."""
    bench = Bench()
    bench.write(A)
    assert bench.guard.pending

    bench.pass_time(1)

    assert not bench.guard.pending
    assert bench.guard.pause is None
    assert bench.shown == A
    assert json.loads(bench.record.data)["changes"] == []


def test_a_change_that_cuts_off_is_rolled_back():
    """After 10 s, not before; to the kernel's own; and the same one is refused from then on."""
    bench = Bench(B)
    bench.write(A)
    bench.pass_time(1)
    bench.write(B)

    bench.pass_time(CONFIRM_TIMEOUT - 1)
    assert bench.shown == B
    bench.pass_time(2)
    assert bench.shown == "absent"

    for again in (B, B + POD):
        with pytest.raises(TrafficRefused, match=r"rolled back at .*, because the API server"):
            bench.write(again)
    bench.restart()
    with pytest.raises(TrafficRefused, match="rolled back"):
        bench.write(B)
    assert bench.shown == "absent"


def test_another_change_is_tried_again():
    """It takes the note away; the default never needs one."""
    bench = Bench(B)
    bench.write(B)
    bench.pass_time(12)
    bench.write("absent")
    with pytest.raises(TrafficRefused):
        bench.write(B)

    bench.write(A)
    bench.write(B)

    assert bench.shown == B


def test_what_was_out_of_reach_before_is_no_reason():
    """Else no change would ever be made on a node whose API server is away."""
    bench = Bench()
    bench.interfaces.network = False
    bench.write(A)
    bench.pass_time(30)
    assert bench.shown == A


def test_a_second_change_has_its_own_time():
    """It waits to be confirmed because of the first, though nothing can be reached before it."""
    bench = Bench(A, B)
    bench.write(A)
    bench.pass_time(5)
    bench.write(B)
    bench.pass_time(6)
    assert bench.shown == B
    bench.pass_time(6)
    assert bench.shown == "absent"


def test_a_pod_s_change_has_no_time_of_its_own():
    """A rollback comes when it is due, though pods come and go every three seconds."""
    bench = Bench(A)
    bench.write(A)
    for pods in (POD, "", POD):
        bench.pass_time(3)
        bench.write(A + pods)
    assert bench.shown == A + POD
    bench.pass_time(2)
    assert bench.shown == "absent"


@pytest.mark.parametrize("again", [False, True], ids=["same helper", "another helper"])
def test_a_pod_s_change_is_no_cause(again):
    """An API server that goes away after it, by itself, costs the node nothing."""
    bench = Bench()
    bench.write(A)
    bench.pass_time(1)
    if again:
        bench.restart()

    bench.write(A + POD)
    bench.interfaces.network = False
    bench.pass_time(30)

    assert not bench.guard.pending
    assert bench.shown == A + POD


def test_the_probation_of_another_interface_is_none_of_this_one():
    """The name came again meanwhile: its tree waits to be confirmed by itself."""
    bench = Bench(B)
    bench.write(A)
    bench.interfaces.numbers["eth0"], bench.interfaces.contents["eth0"] = 9, "absent"
    bench.write(B)
    bench.pass_time(12)
    assert bench.shown == "absent"


@pytest.mark.parametrize("broken", [False, True])
def test_the_next_helper_goes_on(broken):
    """Of a change that the last one has left: also when it was killed before the change."""
    bench = Bench(*([A] if broken else []))
    bench.write(A)
    bench.restart()
    bench.guard.check()
    bench.pass_time(12)
    assert bench.shown == ("absent" if broken else A)
    assert not bench.guard.pending


def test_nothing_is_changed_while_another_helper_looks():
    """It says so; afterwards the change is made."""
    bench = Bench()
    bench.record.taken = True
    with pytest.raises(KernelFileError, match="earlier run"):
        bench.write(A)
    assert bench.shown == "absent"
    bench.record.taken = False
    bench.write(A)
    assert bench.shown == A


def test_nothing_is_changed_without_a_record():
    """A killed helper could not be undone."""
    bench = Bench()
    bench.record.error = OSError(errno.ENOSPC, "no space")
    with pytest.raises(KernelFileError, match="no space"):
        bench.write(A)
    assert bench.shown == "absent"
    assert not bench.guard.pending


def test_a_refused_change_is_on_no_probation():
    """What was there before is in force."""
    bench = Bench()
    bench.interfaces.error = TrafficRefused("eth0", wanted="a", found="b", hint="c")
    with pytest.raises(TrafficRefused):
        bench.write(A)
    assert not bench.guard.pending
    assert json.loads(bench.record.data)["changes"] == []


def test_a_rollback_that_fails_is_tried_again():
    """Until the kernel takes it, or the interface has gone."""
    bench = Bench(A)
    bench.write(A)
    bench.interfaces.error = KernelFileError("eth0", wanted="a", found="b", hint="c")
    bench.pass_time(20)
    assert bench.guard.pending
    bench.interfaces.error = None
    bench.pass_time(1)
    assert bench.shown == "absent"

    bench.interfaces.broken = {B}
    bench.write(B)
    bench.interfaces.numbers["eth0"] = 9
    bench.pass_time(12)
    assert not bench.guard.pending


def test_an_interface_of_another_number_is_left_alone():
    """The name came again."""
    bench = Bench()
    with pytest.raises(OSError, match="No such device"):
        bench.guard.write("eth0", 77, A.encode())
    with pytest.raises(OSError, match="No such device"):
        bench.guard.write("gone", 2, A.encode())
    with pytest.raises(ValueError, match="wanted traffic classes"):
        bench.guard.write("eth0", 2, b"altered")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(["absent", A, B, A + POD])),
        st.tuples(st.just("pass"), st.integers(1, 12)),
        st.tuples(st.just("kill"), st.none()),
        st.tuples(st.just("network"), st.booleans()),
    ),
    max_size=20,
)


@given(steps=STEPS, broken=st.sets(st.sampled_from([A, B])))
@example(steps=[("write", A), ("kill", None), ("write", B), ("kill", None)], broken={A, B})
def test_a_node_is_never_cut_off_for_long(steps, broken):
    """Whatever happens: 22 s later (a killed helper's time begins anew) it can be reached.

    Unless its network was away when the change was made, so that nothing could be known.
    """
    bench = Bench(*broken)
    blind = False
    for step, value in steps:
        if step == "write":
            blind = blind or not bench.interfaces.network
            try:
                bench.write(value)
            except TrafficRefused:
                found = stable_part(value) in broken
                assert found or not all(v for s, v in steps if s == "network")
        elif step == "pass":
            bench.pass_time(value)
        elif step == "kill":
            bench.restart()
        else:
            bench.interfaces.network = value
    bench.interfaces.network = True
    bench.pass_time(24)
    assert not bench.guard.pending
    assert blind or stable_part(bench.shown) not in broken


@given(
    running=st.sampled_from([None, PendingChange(2, A, 5.0)]),
    wanted=st.sampled_from(["absent", A, A + POD, B]),
    needs_confirmation=st.booleans(),
)
def test_what_is_on_probation(running, wanted, needs_confirmation):
    """Each tree that is made while something is known of the network."""
    found = pending_change_of(
        running, identity=2, wanted=wanted, needs_confirmation=needs_confirmation, now=7.0
    )
    if wanted == "absent" or not (needs_confirmation or running):
        assert found is None
    else:
        goes_on = running and wanted != B
        assert found == PendingChange(2, wanted, 5.0 if goes_on else 7.0 + CONFIRM_TIMEOUT)


TREES = st.sampled_from([A, B, A + POD])
NAMES = st.sampled_from(["eth0", "ens3", "a-b.1"])
CHANGES = st.builds(
    PendingChange,
    identity=st.integers(1, 2**31),
    wanted=TREES,
    until=st.just(CONFIRM_TIMEOUT),
)
NOTES = st.builds(
    RolledBackChange, wanted=TREES, at=st.just("2026-01-01T00:00:00+00:00"), reason=st.just("why")
)
STATES = st.builds(
    CommitConfirmState, st.dictionaries(NAMES, CHANGES), st.dictionaries(NAMES, NOTES)
)


@given(state=STATES)
def test_a_record_is_read_as_it_was_written(state):
    """But of another boot, whose traffic control is gone, notes only."""
    data = encode_state(state, "boot")
    assert decode_state(data, "boot", 0.0) == state
    assert decode_state(data, "next boot", 0.0) == replace(state, pending_changes={})


@given(data=st.binary(max_size=200))
@example(data=b"{}")
@example(data=b'{"version":2}')
@example(
    data=b'{"version":1,"boot":"b","changes":[{"interface":"../x","identity":1,'
    b'"wanted":"default 1; class 1 below 0 rate 1000 ceil 2000 prio 0"}]}'
)
@example(
    data=b'{"version":1,"boot":"b","changes":[{"interface":"x","identity":1,"wanted":"absent"}]}'
)
def test_a_bad_record_is_refused(data):
    """Whatever it is: it was another's, torn, or of another version."""
    with pytest.raises(InvalidObject):
        decode_state(data, "b", 0.0)


def test_a_record_file_has_one_holder(tmp_path):
    """The state is the next one's as soon as the first has ended; a torn one counts as none."""
    directory = OwnedDirectory.open(tmp_path / "state")
    first, second = PendingChangesFile(directory, "b"), PendingChangesFile(directory, "b")
    assert first.hold()
    assert not second.hold()
    state = CommitConfirmState({"eth0": PendingChange(2, A, CONFIRM_TIMEOUT)})
    first.save(state)
    assert second.load(0.0) == state
    (tmp_path / "state/changes.json").write_bytes(b'{"version": 1, "bo')
    assert second.load(0.0) == CommitConfirmState()


@given(data=st.binary(max_size=100))
def test_a_line_of_another_kind_is_refused(data):
    """Both sides end then."""
    with pytest.raises(ChannelError):
        parse_message(data)


@pytest.mark.parametrize(
    "err",
    [
        ForeignQdisc("p", wanted="w", found="f", hint="h"),
        TrafficRefused("p", wanted="w", found="f", hint="h"),
        KernelFileError("p", wanted="w", found="f", hint="h"),
        no_such_interface("eth0"),
        ValueError("none"),
    ],
)
def test_errors_pass_through(err):
    """Of the same type, with the same words."""
    line = json.loads(json.dumps(error_message(err)))
    with pytest.raises(type(err)) as found:
        raise_error(line)
    if isinstance(err, KernelFileError):
        assert str(found.value) == str(err)


class FakeProcess:
    """The process of a helper."""

    def __init__(self):
        self.killed = False

    def kill(self):
        self.killed = True

    def wait(self, limit):
        assert limit > 0
        return -9


def test_a_helper_that_hangs_is_killed_and_started_anew():
    """After a pause that grows; meanwhile each call says why."""
    clock, started = SimulatedClock(), []

    def start():
        ours, its = socket.socketpair()
        its.sendall(b'{"v":1,"ok":null}\n')
        if started:
            its.sendall(b'{"v":1,"ok":7}\n')
        started.append((its, FakeProcess()))
        return Channel(ours, 0.05), started[-1][1]

    traffic = HelperTraffic(start, clock)
    with pytest.raises(KernelFileError, match=r"no answer within 0\.05 s"):
        traffic.identity("eth0")
    assert started[0][1].killed
    with pytest.raises(KernelFileError, match=r"no answer .* next start is in"):
        traffic.identity("eth0")
    assert len(started) == 1
    clock.tick(1.2)

    assert traffic.identity("eth0") == 7

    traffic.close()
    for end, _ in started:
        end.close()


def test_an_endless_line_is_refused():
    """It is never kept whole."""
    ours, its = socket.socketpair()
    with ours, its:
        its.setblocking(False)
        channel = Channel(ours, 0.05)
        its.send(b"x" * 1000)
        with pytest.raises(ChannelError, match="no answer"):
            channel.receive()
        its.close()
        with pytest.raises(ChannelError, match="it has ended"):
            channel.receive()


@pytest.mark.parametrize(
    ("host", "port", "wanted"),
    [
        ("10.96.0.1", "443", ("10.96.0.1", 443)),
        ("fd00::1", "6443", ("fd00::1", 6443)),
        ("", "", None),
        ("kubernetes.default", "443", None),
        ("10.96.0.1", "0", None),
        ("10.96.0.1", "65536", None),
        ("10.96.0.1", "-1", None),
    ],
)
def test_the_api_server_is_the_pod_s(host, port, wanted):
    """By address: a name would be asked for in the node's network."""
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    assert api_server(environ) == wanted


class Sandbox:
    """A kernel that refuses capset, as a unit of systemd has it."""

    def __init__(self, held):
        self.held = held

    def prctl(self, *_):
        return 0

    def capset(self, *_):
        return -1

    def capget(self, _, found):
        found.raw = struct.pack("6I", *[self.held & 0xFFFFFFFF] * 3, *[self.held >> 32] * 3)
        return 0


def test_a_sandbox_may_have_taken_the_capabilities_before(monkeypatch):
    """Then nothing is left to drop; otherwise the helper does not work with more than it needs."""
    monkeypatch.setattr(program, "_libc", Sandbox(1 << 12))
    program.drop_capabilities()
    for more in (1 << 21, 1 << 38):
        monkeypatch.setattr(program, "_libc", Sandbox(1 << 12 | more))
        with pytest.raises(OSError, match="capset"):
            program.drop_capabilities()


def test_the_shape_of_a_tree_is_that_of_its_upper_classes():
    """Pods come and go below them; the spec changes those above."""
    upper = (
        "default 5; class 1 below 0 rate 9000 ceil 9000 prio 0; "
        "class 3 below 1 rate 4000 ceil 9000 prio 2"
    )
    pods = (
        "; class 5 below 3 rate 3000 ceil 9000 prio 2; class 99 below 3 rate 1000 ceil 2000 prio 2"
        "; class 100 below 99 rate 1000 ceil 2000 prio 2"
    )

    assert stable_part(f"{upper}{pods}; from 10.0.0.7 class 99; to fd00::7 class 5") == upper
    assert stable_part(upper.replace("4000", "4001")) != upper
    assert stable_part("absent") == "absent"
    assert stable_part(A) == A


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from([10**400, float("inf"), "\ud800", "eth0", "absent", A]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)  # fmt: skip
_REQUESTS = st.fixed_dictionaries(
    {"v": st.just(1) | _VALUES},
    optional={
        "op": st.sampled_from(["read", "identity", "end", "sockets", "write"]) | _VALUES,
        "interface": st.just("eth0") | _VALUES,
        "pid": _VALUES,
        "identity": st.just(2) | _VALUES,
        "content": st.sampled_from([A, "absent\n"]) | _VALUES,
    },
)


@example(lines=[b'{"v": 1, "op": "end", "pid": 1e999}', b'{"v": 1, "op": "end", "pid": []}'])
@example(lines=[b'{"v": 1, "op": "write", "interface": "eth0", "identity": null}', b"[]", b"{"])
@example(lines=[b'{"v": 1, "op": "end", "pid": 1' + b"0" * 400 + b"}"])
@given(
    lines=st.lists(
        _REQUESTS.map(lambda found: json.dumps(found).encode())
        | st.binary(max_size=40).filter(lambda line: b"\n" not in line),
        max_size=4,
    )
)
def test_any_line_has_an_answer_and_the_helper_lives(lines):
    """It ends with its agent only: a change may be unconfirmed."""
    clock = SimulatedClock()
    traffic = CommitConfirmTraffic(Interfaces(), Interfaces(), Memory(), clock)
    agent, helper = socket.socketpair()
    with agent, helper:
        channel, requesting = Channel(helper, 10.0), Channel(agent, 10.0)
        for line in [*lines, b'{"v": 1, "op": "identity", "interface": "eth0"}']:
            agent.sendall(line + b"\n")
            channel.send(respond(channel, traffic))
            found = requesting.receive()
            assert ("ok" in found) != ("error" in found)
        assert found["ok"] == 2
        agent.shutdown(socket.SHUT_WR)
        with pytest.raises(ChannelError, match="it has ended"):
            respond(channel, traffic)
