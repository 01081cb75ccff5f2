"""The agent's config file: each kind of value reaches its flag, a bad entry is named by line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component.config.document import read_config
from koord.component.config.follower import parse_flag_document
from koord.component.flags import FlagSet
from koord.util.errors import OptionError
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

    config = read_config(path, parse_flag_document)
    flag_set.set_from_config(config.values, config.where)

    assert flags.addr.value == "127.0.0.1:9400"
    assert flags.psi_collector_interval.value == 5.0
    assert flags.descriptor_budget.value == 100
    assert flags.standalone.value is True
    assert flags.feature_gates.value == {"PSICollector": True, "CPUBurst": False}
    assert flag_set["runtime-hooks-disable-stages"].value == ("PreRunPodSandbox",)
    assert flag_set.inert_set() == []


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
    config = parse_flag_document(text.encode(), PATH)
    with pytest.raises(OptionError) as caught:
        flag_set.set_from_config(config.values, config.where)
    assert message in str(caught.value)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(data):
    """Nothing but OptionError comes out."""
    flag_set = FlagSet()
    define_flags(flag_set)
    try:
        config = parse_flag_document(data, PATH)
        flag_set.set_from_config(config.values, config.where)
    except OptionError:
        return
