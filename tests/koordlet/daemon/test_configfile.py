"""The config file: read whole or refused with a line, and compared with its last version."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component.flags import FlagSet
from koord.util.errors import OptionError
from koordlet.daemon.configfile import MAX_BYTES, compare, load_config, parse_config
from koordlet.daemon.flags import define_flags

GOOD = """\
# koordlet
addr: "127.0.0.1:9400"
log-level: info,MyPlugin=debug
psi-collector-interval: 5s
descriptor-budget: 100
standalone: true
feature-gates:
  PSICollector: true
  CPUBurst: false
runtime-hooks-disable-stages: [PreRunPodSandbox]
"""
PATH = Path("/etc/koordlet.yaml")


def test_every_kind_of_value_reaches_its_flag(tmp_path):
    path = tmp_path / "koordlet.yaml"
    path.write_text(GOOD)
    flag_set = FlagSet()
    flags = define_flags(flag_set)

    config = load_config(path)
    flag_set.set_from_config(config.values, config.where)

    assert flags.addr.value == "127.0.0.1:9400"
    assert flags.psi_collector_interval.value == 5.0
    assert flags.descriptor_budget.value == 100
    assert flags.standalone.value is True
    assert flags.feature_gates.value == {"PSICollector": True, "CPUBurst": False}
    assert flag_set["runtime-hooks-disable-stages"].value == ("PreRunPodSandbox",)
    assert flag_set.inert_set() == ["runtime-hooks-disable-stages"]


def test_an_example_in_json_is_yaml_too():
    assert parse_config(b'{"addr": ":1"}', PATH).values == {"addr": ":1"}


@pytest.mark.parametrize("data", [b"", b"# nothing yet\n", b"---\n", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_entries(data):
    assert parse_config(data, PATH).values == {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"- addr\n", "wanted a map of flag names to values"),
        (b"just text\n", "wanted a map of flag names to values"),
        (
            b"addr: ':1'\nlog-level: info\naddr: ':2'\n",
            "koordlet.yaml:3: found 'addr'; the same key",
        ),
        (b'{"addr": ":1", "addr": ":2"}', "the same key is on line 1"),
        (b"feature-gates:\n  A: true\n  A: false\n", "koordlet.yaml:3: found 'A'; the same key"),
        (b"addr: [", "not YAML"),
        (b"addr: \x00", "not YAML"),
        (b"\xff\xfe", "not YAML"),
        (b"a: 1\n---\nb: 2\n", "a single document"),
        (b"a: &x [1]\nb: *x\n", "alias"),
        (b"a: !!python/object/apply:os.system [id]\n", "tag"),
        (b"[" * 5000, "YAML"),
        (b"a: " + b"[" * 500 + b"]" * 500, "not YAML"),
    ],
)
def test_a_bad_file_is_refused_whole(data, message):
    """The message names the file and, where one is at fault, the line."""
    with pytest.raises(OptionError) as caught:
        parse_config(data, PATH)
    assert message in str(caught.value)
    assert str(PATH) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("addr: ':1'\nlog-levle: info\n", "koordlet.yaml:2: log-levle: found 'log-levle'; no flag"),
        ("log-levle: info\n", "the nearest is log-level"),
        (
            "\ndescriptor-budget: many\n",
            "koordlet.yaml:2: descriptor-budget: found 'many'; wanted a",
        ),
        ("psi-collector-interval: 5\n", "wanted a duration like"),
        ("psi-collector-interval: 5ms\n", "use 1s or more"),
        ("feature-gates: PSICollector=true\n", "wanted a map of names to true or false"),
        ("feature-gates: {PSICollector: maybe}\n", "wanted a map of names to true or false"),
        ("runtime-hooks-nri-plugin-index: 00\n", "found 0; wanted a text (put it in quotes)"),
        ("true: 1\n", "koordlet.yaml:1: true: found 'true'; no flag"),
    ],
)
def test_a_bad_entry_is_named_with_its_line(text, message):
    flag_set = FlagSet()
    define_flags(flag_set)
    config = parse_config(text.encode(), PATH)
    with pytest.raises(OptionError) as caught:
        flag_set.set_from_config(config.values, config.where)
    assert message in str(caught.value)


def test_unreadable_and_huge_files_are_refused(tmp_path):
    with pytest.raises(OptionError, match="No such file"):
        load_config(tmp_path / "none")
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(OptionError, match=f"larger than {MAX_BYTES} bytes"):
        load_config(huge)


def test_gates_and_log_level_change_at_once_and_the_rest_waits():
    """What goes on in force: live entries as newly read, the others as before."""
    before = {"addr": ":1", "log-level": "info", "feature-gates": {"A": True}, "pods-file": "x"}
    after = {"addr": ":2", "feature-gates": {"A": False}, "pods-file": "x", "node-file": "y"}

    change = compare(before, after)

    assert change.live == ("feature-gates", "log-level")
    assert change.needs_restart == ("addr", "node-file")
    assert change.in_force == {"addr": ":1", "feature-gates": {"A": False}, "pods-file": "x"}


def test_taking_a_waiting_change_back_is_no_change():
    before = {"addr": ":1"}
    change = compare(before, {"addr": ":2"})
    assert compare(change.in_force, {"addr": ":1"}).needs_restart == ()


ENTRIES = st.dictionaries(
    st.sampled_from(["addr", "log-level", "feature-gates"]), st.integers(0, 2)
)


@given(ENTRIES, ENTRIES)
def test_comparing_twice_finds_only_what_waits(before, after):
    """Once the live part is in force, nothing live differs any more."""
    again = compare(compare(before, after).in_force, after)
    assert again.live == ()
    assert set(again.needs_restart) <= {"addr"}


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(data):
    """Nothing but OptionError comes out."""
    flag_set = FlagSet()
    define_flags(flag_set)
    try:
        config = parse_config(data, PATH)
        flag_set.set_from_config(config.values, config.where)
    except OptionError:
        return
