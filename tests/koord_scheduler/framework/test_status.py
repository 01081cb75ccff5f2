"""Codes and messages of statuses."""

import pytest

from koord_scheduler.framework.status import Code, Status


def test_codes_have_kubernetes_numbers() -> None:
    """They are in metrics and in what other processes send."""
    assert [code.title for code in sorted(Code)] == [
        "Success",
        "Error",
        "Unschedulable",
        "UnschedulableAndUnresolvable",
        "Wait",
        "Skip",
        "Pending",
    ]
    assert [int(code) for code in Code] == list(range(7))


@pytest.mark.parametrize(
    ("status", "ok", "rejected"),
    [
        (Status(), True, False),
        (Status.failed("no"), False, False),
        (Status.unschedulable("no"), False, True),
        (Status.unresolvable("no"), False, True),
        (Status.pending("later"), False, True),
        (Status(Code.WAIT), False, False),
        (Status.skip(), False, False),
    ],
)
def test_which_statuses_are_rejections(status: Status, ok: bool, rejected: bool) -> None:
    """Unschedulable, UnschedulableAndUnresolvable and Pending."""
    assert (status.ok, status.rejected) == (ok, rejected)


def test_a_message_is_the_error_then_the_reasons() -> None:
    """Joined with a comma; an error is named by its type."""
    assert Status.unschedulable("a", "b").message == "a, b"
    assert (
        Status(Code.ERROR, ("why",), error=ValueError("broken")).message
        == "ValueError('broken'), why"
    )
    assert Status.failed(KeyError()).message == "KeyError()"
    assert str(Status()) == "Success"


def test_the_first_plugin_of_a_status_stays() -> None:
    """A status that is passed on keeps where it comes from."""
    status = Status.unschedulable("no").of("A")
    assert status.of("B").plugin == "A"
