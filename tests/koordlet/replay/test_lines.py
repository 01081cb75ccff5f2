"""Samples become columns of a record and come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.clock import Stamp
from koord.util.errors import InvalidObject
from koordlet.metriccache import kinds
from koordlet.metriccache.kinds import Sample
from koordlet.replay.record_format import LineKind, SampleReader, SampleWriter, read_line, without

USAGE = st.floats(0, 1e12, allow_nan=False)
TICKS = st.lists(st.dictionaries(st.sampled_from("abcdef"), USAGE, max_size=6), max_size=8)


def played(ticks):
    """What a reader makes of the lines of these ticks, and the kinds of lines."""
    writer, reader = SampleWriter(), SampleReader()
    found, lines = [], []
    for number, samples in enumerate(ticks):
        for text in writer.lines(Stamp(100.0 + number, 10.0 + number), 5.0 + number, samples):
            kind, content = read_line(text, "test")
            lines.append(kind)
            if kind is LineKind.KEYS:
                reader.learn(*content)
            else:
                found.append(reader.samples(content[3]))
    return found, lines


@given(TICKS)
def test_whatever_series_come_and_go(ticks):
    """Each tick has its own samples, to a millionth."""
    samples = [
        [Sample(kinds.POD_CPU_USAGE, value, (uid,)) for uid, value in tick.items()]
        for tick in ticks
    ]
    found, _ = played(samples)

    assert [{s.key: s.value for s in tick} for tick in found] == [
        {s.key: pytest.approx(s.value, abs=1e-6) for s in tick} for tick in samples
    ]


def test_series_are_named_once():
    """Not in each tick: names are longer than values."""
    steady = [Sample(kinds.NODE_CPU_USAGE, 1), Sample(kinds.POD_CPU_USAGE, 0.5, ("u1",))]
    _, lines = played([steady, steady, steady])

    assert lines == [LineKind.KEYS, LineKind.KEYS, LineKind.TICK, LineKind.TICK, LineKind.TICK]


def test_kinds_of_another_version_are_left_out():
    """A record of a newer daemon can be played."""
    reader = SampleReader()
    reader.learn("node_mood", [[]])

    assert reader.samples({"node_mood": [1.0], "node_cpu_usage": [2.0]}) == []


def test_values_are_never_taken_for_those_of_other_series():
    """After a line that may have named series, until they are named again."""
    reader = SampleReader()
    reader.learn("pod_cpu_usage", [["u1"]])
    for _, content in without(b'["tick",spoilt'):
        reader.learn(*content)
    assert len(reader.samples({"pod_cpu_usage": [1.0]})) == 1
    assert reader.samples({"pod_cpu_usage": [1.0, 2.0]}) == []

    for kind, content in without(b'["keys","pod_cpu_usage",[["u2"],'):
        assert kind is LineKind.KEYS
        reader.learn(*content)
    assert reader.samples({"pod_cpu_usage": [1.0]}) == []


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b'["unknown", 1]', b"\xff", b"[[]]"])
def test_other_text_is_no_line(text):
    """And the message says where."""
    with pytest.raises(InvalidObject, match=r"line 7: wanted (JSON|a line of a record)"):
        read_line(text, "line 7")
