"""Which root qdiscs are the kernel's own: messages of kernels that the tests do not run on."""

import pytest

from koordlet.host.net.tc.kernel import _read_state_once

ROOT, CLSACT, OTHER = 0xFFFFFFFF, 0xFFFFFFF1, 9


class Message(dict):
    def __init__(self, kind, handle, parent, index=2):
        super().__init__(index=index, handle=handle, parent=parent)
        self.kind = kind

    def get_attr(self, name):
        assert name == "TCA_KIND"
        return self.kind


class Route:
    def __init__(self, *qdiscs):
        self.qdiscs = qdiscs

    def get_qdiscs(self, index):
        return [Message("tbf", 0x10000, ROOT, OTHER), *self.qdiscs]


def mq(*kinds, handle=0, below=0):
    queues = (Message(kind, below, at) for at, kind in enumerate(kinds, 1))
    return Route(Message("mq", handle, ROOT), *queues)


@pytest.mark.parametrize("kind", ["noqueue", "pfifo_fast", "fq_codel", "fq"])
def test_what_the_kernel_made_by_itself(kind):
    """It has no handle; clsact beside it is not looked at."""
    found = _read_state_once(
        Route(Message("clsact", 0xFFFF0000, CLSACT), Message(kind, 0, ROOT)), 2
    )

    assert (found.text, found.queues) == ("absent", 0)


def test_an_interface_without_a_root():
    """One that is down."""
    assert _read_state_once(Route(), 2).text == "absent"


def test_queues_are_counted():
    """They are lost, for a time."""
    found = _read_state_once(mq("fq_codel", "fq_codel", "pfifo_fast"), 2)

    assert (found.text, found.queues) == ("absent", 3)


@pytest.mark.parametrize(
    ("route", "text"),
    [
        (mq("fq_codel", "fq_codel", handle=0x10000), "foreign mq"),
        (mq("fq_codel", "fq_codel", below=0x80010000), "foreign mq"),
        (mq("fq_codel", "netem"), "foreign mq"),
        (Route(Message("fq_codel", 0x10000, ROOT)), "foreign fq_codel"),
        (Route(Message("cake", 0, ROOT)), "foreign cake"),
        (Route(Message("htb", 0x10000, ROOT)), "foreign htb"),
        (Route(Message("\nhtb; class 1", 0x10000, ROOT)), "foreign htbclass1"),
        (Route(Message(None, 0x10000, ROOT)), "foreign none"),
        (Route(Message("é", 0x10000, ROOT)), "foreign unknown"),
    ],
)
def test_what_another_agent_made(route, text):
    """It has a handle, is below mq, or of a kind that is no default."""
    assert _read_state_once(route, 2).text == text
