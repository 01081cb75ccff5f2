"""The ledger as text: what is written reads back, what is malformed is refused, size is bounded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ReportedUsage
from koord.util.errors import InvalidObject
from koord_descheduler.ledger.entries import (
    MAX_BYTES,
    Baseline,
    Entry,
    LedgerDocument,
    Outcome,
    Pause,
    WorkloadRef,
    from_text,
    merge_entries,
    merge_pauses,
    to_text,
)

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
_TIMES = st.floats(0, 2e9)
_USAGES = st.builds(ReportedUsage, st.floats(-100, 100), st.floats(-1e12, 1e12))
_WORKLOADS = st.builds(WorkloadRef, st.sampled_from(("Pod", "Deployment")), _TEXTS, _TEXTS, _TEXTS)
_ENTRIES = st.builds(
    Entry,
    pod=_TEXTS,
    uid=st.sampled_from("abcd"),
    node=_TEXTS,
    workload=_WORKLOADS,
    at=_TIMES,
    predicted=st.none() | _USAGES,
    before=st.none() | st.builds(Baseline, _TIMES, _USAGES, st.none() | _USAGES),
    left=st.none() | _TIMES,
    outcome=st.sampled_from(Outcome),
    measured=st.none() | _USAGES,
)
_PAUSES = st.builds(
    Pause, workload=_WORKLOADS, strikes=st.integers(1, 8), began=_TIMES, until=_TIMES
)


def _ledger(entries: list[Entry], pauses: list[Pause]) -> LedgerDocument:
    by_workload = {pause.workload: pause for pause in pauses}
    return LedgerDocument(tuple(merge_entries(entries, ())), tuple(by_workload.values()))


@given(st.lists(_ENTRIES, max_size=4), st.lists(_PAUSES, max_size=4))
def test_what_is_written_reads_back(entries: list[Entry], pauses: list[Pause]) -> None:
    """All of it, in order of time."""
    ledger = _ledger(entries, pauses)

    found = from_text(to_text(ledger))

    assert found.entries == ledger.entries
    assert set(found.pauses) == set(ledger.pauses)


@given(st.lists(_ENTRIES, max_size=4), st.lists(_ENTRIES, max_size=4))
def test_two_ledgers_become_one_whichever_comes_first(one: list[Entry], other: list[Entry]) -> None:
    """And a third time nothing changes."""
    merged = merge_entries(one, other)

    assert merge_entries(other, one) == merged
    assert merge_entries(merged, other) == merged
    assert {entry.uid for entry in merged} == {entry.uid for entry in (*one, *other)}


@given(st.lists(_PAUSES, max_size=5), st.lists(_PAUSES, max_size=5))
def test_of_two_pauses_of_a_workload_the_longer_one_counts(
    one: list[Pause], other: list[Pause]
) -> None:
    """Whichever ledger it is in."""
    mine, theirs = ({pause.workload: pause for pause in found} for found in (one, other))

    merged = merge_pauses(mine, theirs)

    assert merge_pauses(theirs, mine) == merged
    for workload, pause in merged.items():
        known = [found[workload].until for found in (mine, theirs) if workload in found]
        assert pause.until == max(known)


def test_a_settled_entry_wins_over_the_same_one_pending() -> None:
    """Another leader may have measured it already."""
    pending = Entry(pod="a/b", uid="u", node="n", workload=WorkloadRef("Pod", "a", "b"), at=1.0)
    settled = Entry(
        pod="a/b",
        uid="u",
        node="n",
        workload=WorkloadRef("Pod", "a", "b"),
        at=1.0,
        outcome=Outcome.RELIEVED,
        settled=400.0,
    )

    assert merge_entries([settled], [pending]) == [settled]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "wanted what this program has written"),
        ("[]", "wanted what this program has written"),
        ('{"version": 2, "entries": "of another form"}', "wanted 1, found 2"),
        ('{"entries": []}', "version"),
        ('{"version": 1, "entries": [{}]}', "pod"),
        ('{"version": 1, "pauses": [{"workload": {}, "strikes": "two"}]}', "wanted what"),
        ('{"version": 1, "entries": ' + "[" * 100_000, "wanted what"),
        (json.dumps({"version": 1, "entries": [None] * 3000}), "wanted what"),
    ],
)
def test_what_is_malformed_is_refused_whole(text: str, wanted: str) -> None:
    """With the field at fault."""
    with pytest.raises(InvalidObject, match=wanted):
        from_text(text)


@given(st.text(max_size=60))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    """Whatever it is."""
    try:
        from_text(text)
    except InvalidObject:
        return


def test_the_text_is_bounded_and_pending_entries_stay_longest() -> None:
    """Long names, two thousand of each: it fits into a ConfigMap."""
    entries = tuple(
        Entry(
            pod="p" * 500,
            uid=f"u{number}",
            node="n" * 250,
            workload=WorkloadRef("Pod", "a", f"b{number}"),
            at=float(number),
            outcome=Outcome.PENDING if number < 200 else Outcome.RELIEVED,
        )
        for number in range(2000)
    )
    pauses = tuple(
        Pause(
            workload=WorkloadRef("Pod", "a" * 250, "b" * 250, str(number)),
            strikes=1,
            began=0.0,
            until=float(number),
        )
        for number in range(2000)
    )

    text = to_text(LedgerDocument(entries, pauses))
    found = from_text(text)

    assert len(text) <= MAX_BYTES
    assert [entry.at for entry in found.entries[:200]] == list(range(200))
    assert found.entries[-1].at == 1999.0
    assert len(found.entries) < 2000
    assert min(pause.until for pause in found.pauses) > 0
    assert max(pause.until for pause in found.pauses) == 1999.0
