"""Flags from a config file: compared with the last version, put into force all or none."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component.config.document import ConfigDocument
from koord.component.config.follower import LiveFlags, compare, parse_command_line
from koord.component.flags import FeatureGates, FeatureSpec, FlagSet
from koord.util.errors import OptionError

LIVE = frozenset({"feature-gates", "log-level"})
PATH = Path("/etc/daemon.yaml")


class Daemon:
    """The flags and gates of a small daemon, started with a config file."""

    def __init__(self, **entries):
        self.flags, self.gates = FlagSet("daemon"), FeatureGates({"Probe": FeatureSpec()}, "daemon")
        self.addr = self.flags.string("addr", ":1", "address")
        self.features = self.flags.bool_map("feature-gates", {}, "gates")
        document = ConfigDocument(PATH, entries)
        self.flags.set_from_config(entries)
        self.applied = []
        self.live = LiveFlags(
            self.flags,
            self.gates,
            document,
            live=LIVE,
            gate_values=lambda: self.features.value,
            applied=lambda document, changed: self.applied.append(changed),
        )

    def apply(self, entries):
        return self.live.apply(ConfigDocument(PATH, entries))


def test_live_flags_and_gates_change_and_the_rest_is_named():
    daemon = Daemon(addr=":2")
    applied = daemon.apply({"addr": ":3", "feature-gates": {"Probe": True}})
    assert (applied.changed, applied.needs_restart) == (("feature-gates",), ("addr",))
    assert applied.facts == {"on": ["Probe"], "off": []}
    assert daemon.gates.enabled("Probe")
    assert daemon.addr.value == ":2"
    assert daemon.applied == [("feature-gates",)]


@pytest.mark.parametrize(
    "entries",
    [
        {"feature-gates": {"Probe": False}, "addr": 7},
        {"feature-gates": {"Probe": False, "Prob": True}},
        {"feature-gates": {"Probe": False}, "addres": ":1"},
    ],
)
def test_a_rejected_document_changes_nothing(entries):
    daemon = Daemon(**{"addr": ":2", "feature-gates": {"Probe": True}})
    daemon.apply({"addr": ":2", "feature-gates": {"Probe": True}})
    with pytest.raises(OptionError):
        daemon.apply(entries)
    assert daemon.gates.enabled("Probe")
    assert daemon.features.value == {"Probe": True}
    assert daemon.addr.value == ":2"
    assert daemon.applied == [()]


def test_a_command_line_names_the_file_of_the_other_flags(tmp_path):
    flags = FlagSet("daemon")
    config, addr = flags.string("config", "", "file"), flags.string("addr", ":1", "address")
    path = tmp_path / "daemon.yaml"
    path.write_text("addr: ':2'\n")

    assert parse_command_line(flags, [], config) is None
    assert addr.value == ":1"
    document = parse_command_line(flags, [f"--config={path}"], config)
    assert document is not None
    assert document.where("addr") == f"{path}:1: addr"
    assert addr.value == ":2"
    with pytest.raises(OptionError, match="only flags are expected"):
        parse_command_line(flags, ["more"], config)


def test_live_keys_change_at_once_and_the_rest_waits():
    """What goes on in force: live entries as newly read, the others as before."""
    before = {"addr": ":1", "log-level": "info", "feature-gates": {"A": True}, "pods-file": "x"}
    after = {"addr": ":2", "feature-gates": {"A": False}, "pods-file": "x", "node-file": "y"}

    change = compare(before, after, LIVE)

    assert change.live == ("feature-gates", "log-level")
    assert change.needs_restart == ("addr", "node-file")
    assert change.in_force == {"addr": ":1", "feature-gates": {"A": False}, "pods-file": "x"}


def test_taking_a_waiting_change_back_is_no_change():
    before = {"addr": ":1"}
    change = compare(before, {"addr": ":2"}, LIVE)
    assert compare(change.in_force, {"addr": ":1"}, LIVE).needs_restart == ()


ENTRIES = st.dictionaries(
    st.sampled_from(["addr", "log-level", "feature-gates"]), st.integers(0, 2)
)


@given(ENTRIES, ENTRIES)
def test_comparing_twice_finds_only_what_waits(before, after):
    """Once the live part is in force, nothing live differs any more."""
    again = compare(compare(before, after, LIVE).in_force, after, LIVE)
    assert again.live == ()
    assert set(again.needs_restart) <= {"addr"}
