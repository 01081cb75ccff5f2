"""A series that cannot exist is an error that says what there is; one that may exist is not."""

import re
from typing import Annotated, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.clock import stamp
from koordlet.metriccache.keys import PodKey, PsiKey, UnknownSeries, properties_of
from koordlet.metriccache.kinds import (
    KINDS,
    NODE_BE,
    NODE_CPU_USAGE,
    NODE_NUMA_CPU_USAGE,
    NODE_PSI,
    POD_CPU_USAGE,
    POD_PSI,
    QOS_PSI,
    AnyKind,
    Kind,
    Sample,
)
from koordlet.plugin.testing import ScriptedMetrics, SimulatedClock


@pytest.mark.parametrize(
    ("kind", "key", "message"),
    [
        (NODE_PSI, ("io", "avg10", "some"), "psi_precision one of ['10'], found 'avg10'"),
        (NODE_PSI, ("memory", "10", "some"), "found 'memory'; the nearest is 'mem'"),
        (NODE_PSI, ("io", "10"), "3 values (psi_resource, psi_precision, psi_degree), found ['io"),
        (NODE_CPU_USAGE, ("cpu0",), "wanted no values: it has one series, found ['cpu0']"),
        (POD_CPU_USAGE, (), "wanted one value (pod_uid), found []"),
        (POD_CPU_USAGE, (None,), "wanted pod_uid as text (UID of the pod), found None"),
        (NODE_NUMA_CPU_USAGE, (0,), "found 0"),
        (QOS_PSI, ("BestEffort", "cpu", "10", "some"), "the nearest is 'besteffort'"),
        (NODE_BE, ("cpu", "limit"), "the nearest is 'real-limit'"),
    ],
)
def test_what_cannot_exist_is_an_error_of_every_query(cache, kind, key, message):
    """("io", "avg10", "some") used to be None, as if nothing had been measured."""
    queries = [
        lambda: cache.last(kind, *key),
        lambda: cache.newest(kind, *key),
        lambda: cache.aggregate(kind, key, 60),
        lambda: cache.series(kind, key, 60),
    ]
    for query in queries:
        with pytest.raises(UnknownSeries, match=re.escape(message)) as raised:
            query()
        assert str(raised.value).startswith(f"{kind.name}: wanted ")


def test_values_by_name_are_checked_too(cache):
    """Of a property that does not exist the nearest is named."""
    with pytest.raises(UnknownSeries, match="'avg10'; the nearest is '10'"):
        cache.last(NODE_PSI, psi_resource="io", psi_precision="avg10", psi_degree="some")
    with pytest.raises(UnknownSeries, match=r"3 values .*'io', precision='10', psi"):
        cache.last(NODE_PSI, "io", precision="10", psi_degree="some")
    with pytest.raises(UnknownSeries, match="3 values"):
        cache.last(NODE_PSI, "io", "10", "some", psi_degree="some")
    with pytest.raises(UnknownSeries, match="found 'precision'; the nearest is 'psi_precision'"):
        cache.match(POD_PSI, precision="10")
    with pytest.raises(UnknownSeries, match="'avg10'; the nearest is '10'"):
        cache.match(POD_PSI, psi_precision="avg10")


@pytest.mark.parametrize("key", ["uid", ["uid"], {"pod_uid": "uid"}, None])
def test_a_key_is_a_tuple(cache, clock, key):
    """A plain text, or a list, is none, whether or not there are samples."""
    cache.append(stamp(clock), [Sample(POD_CPU_USAGE, 1.0, ("uid",))])

    with pytest.raises(UnknownSeries, match="pod_cpu_usage: wanted one value"):
        cache.aggregate(POD_CPU_USAGE, key, 60)


def test_a_series_that_may_come_is_absent(cache):
    """No sample yet is no mistake."""
    assert cache.last(NODE_PSI, "io", "10", "some") is None
    assert cache.last(POD_CPU_USAGE, pod_uid="not here yet") is None
    assert cache.aggregate(POD_PSI, POD_PSI.key("uid", "cpu", "10", "full"), 60) is None


def test_keys_come_back_with_names(make_cache, tmp_path, clock):
    """Also those of an earlier process, that a ring file holds."""
    before = make_cache(tmp_path)
    before.append(stamp(clock), [Sample(NODE_PSI, 12.5, ("io", "10", "some"))])
    before.close()
    cache = make_cache(tmp_path)

    [key] = cache.last_values(NODE_PSI)

    assert isinstance(key, PsiKey)
    assert (key.psi_resource, key.psi_degree) == ("io", "some")
    assert cache.last(NODE_PSI, *key) == 12.5
    assert cache.last(NODE_PSI, "io", psi_degree="some", psi_precision="10") == 12.5
    assert cache.keys(NODE_PSI) == [("io", "10", "some")]


def test_the_kit_refuses_what_cannot_be_measured():
    """A test would otherwise prove something about a series that no node has."""
    metrics = ScriptedMetrics(SimulatedClock())

    with pytest.raises(UnknownSeries, match="psi_precision"):
        metrics.hold(NODE_PSI, 50.0, "io", "avg10", "some")
    with pytest.raises(UnknownSeries, match="pod_uid"):
        metrics.drop(POD_CPU_USAGE)


class _DiskKey(NamedTuple):
    disk: Annotated[str, "name of the disk"]
    side: Literal["read", "write"]


class _Numbered(NamedTuple):
    number: int


def test_properties_follow_from_the_key_type():
    """Names, meanings and closed sets of values; anything but text is refused."""
    disk, side = properties_of(_DiskKey)

    assert (disk.name, disk.meaning, disk.values) == ("disk", "name of the disk", ())
    assert (side.name, side.values) == ("side", ("read", "write"))
    with pytest.raises(UnknownSeries, match="number: wanted str or a Literal"):
        Kind("numbered", "1", "nothing", _Numbered)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@given(data=st.data())
def test_a_key_is_good_when_each_value_is(kind: AnyKind, data: st.DataObject):
    """check and key agree with what the properties say, for any text."""
    values = [
        data.draw(st.one_of(st.text(max_size=8), st.sampled_from(part.values or ("x",))))
        for part in kind.parts
    ]
    good = all(
        not part.values or value in part.values
        for part, value in zip(kind.parts, values, strict=True)
    )

    if good:
        assert kind.made(*values) == tuple(values)
        assert kind.made(**dict(zip(kind.properties, values, strict=True))) == tuple(values)
    else:
        with pytest.raises(UnknownSeries, match=kind.name):
            kind.made(*values)


def test_each_property_has_a_meaning_and_each_kind_a_help():
    """The reference is made of them."""
    assert all(part.meaning for kind in KINDS.values() for part in kind.parts)
    assert all(kind.help for kind in KINDS.values())


def test_a_key_equals_the_plain_tuple():
    """So that what is written by hand and what comes back are one."""
    assert PodKey("a") == ("a",)
    assert hash(PodKey("a")) == hash(("a",))
