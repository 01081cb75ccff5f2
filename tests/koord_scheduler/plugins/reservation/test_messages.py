"""Why reservations did not help (worked examples 28 to 32)."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_scheduler_plugins.reservation.matching import NodeDiagnosis
from koord_scheduler_plugins.reservation.serving import MAX_MESSAGE, event_message, reasons

CPU = "Reservation(s) Insufficient cpu"
PODS = "Reservation(s) Too many pods"


@pytest.mark.parametrize(
    ("nodes", "required", "wanted"),
    [
        (  # 28
            [
                (NodeDiagnosis(owner_matched=3, unschedulable=3), []),
                (NodeDiagnosis(owner_matched=1, unschedulable=1), []),
            ],
            False,
            ["4 Reservation(s) is unschedulable", "4 Reservation(s) matched owner total"],
        ),
        ([(NodeDiagnosis(), [])], True, ["0 Reservation(s) matched owner total"]),  # 29
        ([(NodeDiagnosis(), ["X"])], False, []),
        (  # 30
            [
                (NodeDiagnosis(owner_matched=3, affinity_unmatched=3), []),
                (NodeDiagnosis(owner_matched=3, unschedulable=1), ["X"]),
            ],
            True,
            [
                "3 Reservation(s) didn't match affinity rules",
                "1 Reservation(s) is unschedulable",
                "2 Reservation(s) for node reason that X",
                "6 Reservation(s) matched owner total",
            ],
        ),
        (  # 31
            [
                (NodeDiagnosis(owner_matched=3, affinity_unmatched=1), [CPU, PODS]),
                (
                    NodeDiagnosis(owner_matched=3, unschedulable=1),
                    [CPU, "Insufficient memory"],
                ),
            ],
            True,
            [
                "1 Reservation(s) didn't match affinity rules",
                "1 Reservation(s) is unschedulable",
                "1 Reservation(s) for node reason that Insufficient memory",
                "6 Reservation(s) matched owner total",
            ],
        ),
        (  # a reason of a node none of whose reservations is left
            [(NodeDiagnosis(owner_matched=2, unschedulable=1), [CPU, PODS, "X"])],
            False,
            ["1 Reservation(s) is unschedulable", "2 Reservation(s) matched owner total"],
        ),
        (  # one node has too many reasons, the other is counted as it is
            [
                (NodeDiagnosis(owner_matched=1), [CPU, PODS, "X"]),
                (NodeDiagnosis(owner_matched=1), ["X"]),
            ],
            False,
            [
                "1 Reservation(s) for node reason that X",
                "2 Reservation(s) matched owner total",
            ],
        ),
        (  # all of them, in their order
            [
                (
                    NodeDiagnosis(
                        owner_matched=6,
                        name_matched=2,
                        name_unmatched=1,
                        not_exact=1,
                        tainted=Counter({"{b: }": 1, "{a: x}": 2}),
                    ),
                    ["Z", "Z", "A"],
                )
            ],
            True,
            [
                "2 Reservation(s) exactly matches the requested reservation name",
                "1 Reservation(s) didn't match the requested reservation name",
                "1 Reservation(s) is not exact matched",
                "2 Reservation(s) had untolerated taint {a: x}",
                "1 Reservation(s) had untolerated taint {b: }",
                "1 Reservation(s) for node reason that A",
                "2 Reservation(s) for node reason that Z",
                "6 Reservation(s) matched owner total",
            ],
        ),
    ],
)
def test_reasons(nodes, required, wanted):
    assert list(reasons(nodes, required=required)) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (  # 32
            "0/3 nodes are available: 1 Reservation(s) Insufficient cpu. "
            "1 Reservation(s) matched owner total.",
            "0/1 reservations are available: 1 Reservation(s) Insufficient cpu.",
        ),
        (
            "0/3 nodes are available: 3 Insufficient cpu, 1 Reservation(s) for node reason that X, "
            "2 Reservation(s) is unschedulable, "
            "1 Reservation(s) exactly matches the requested reservation name, "
            "4 Reservation(s) matched owner total. preemption: 0/3 nodes are available.",
            "0/4 reservations are available: "
            "1 Reservation(s) exactly matches the requested reservation name, "
            "2 Reservation(s) is unschedulable, 1 Reservation(s) for node reason that X.",
        ),
        ("0/3 nodes are available: 1 Reservation(s) is unschedulable.", None),
        ("1 Reservation(s) matched owner total.", None),
        ("", None),
    ],
)
def test_the_event(text, message):
    assert event_message(text) == message


def test_an_event_is_cut():
    items = ", ".join(f"{at} Reservation(s) {'x' * 50}" for at in range(100))

    message = event_message(
        f"0/3 nodes are available: {items}, 1 Reservation(s) matched owner total."
    )

    assert message is not None
    assert len(message) == MAX_MESSAGE
    assert message.endswith(" ...")


@given(st.text() | st.text().map(lambda text: f"0/3 nodes are available: {text}"))
def test_an_event_of_any_text_is_bounded(text):
    assert len(event_message(text) or "") <= MAX_MESSAGE
