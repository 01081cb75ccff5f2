"""Audit events as lines."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.executor.audit.files import (
    MAX_LINE_LENGTH,
    AuditEvent,
    AuditSubject,
    created_at,
    decode_event,
    encode_event,
)


@pytest.fixture
def live_in(monkeypatch):
    """Moves this process to another time zone."""

    def live_in(zone):
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield live_in
    monkeypatch.undo()
    time.tzset()


def test_an_event_is_the_line_that_koordinator_writes(live_in):
    """Field by field, empty ones left out, with the local offset."""
    live_in("Asia/Shanghai")
    event = AuditEvent(
        type=AuditSubject.POD,
        namespace="ns",
        name="p",
        reason="CFSQuotaBurst",
        message="update pod CFSQuota: 200000",
    )

    assert encode_event(event, 1784847165.125).decode() == (
        '{"createdAt":"2026-07-24T06:52:45.125000000+08:00","type":"pod","namespace":"ns",'
        '"name":"p","reason":"CFSQuotaBurst","message":"update pod CFSQuota: 200000"}\n'
    )


def test_utc_is_a_z(live_in):
    """As Go writes it."""
    live_in("UTC")
    assert created_at(0.5) == "1970-01-01T00:00:00.500000000Z"


@given(
    st.builds(
        AuditEvent,
        reason=st.text(min_size=1),
        message=st.text(max_size=2000),
        name=st.text(),
        container=st.text(),
    )
)
def test_any_text_is_one_line_that_can_be_read_again(event):
    """Newlines, half characters and endless messages included."""
    line = encode_event(event, 1.0)

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line) < MAX_LINE_LENGTH
    assert decode_event(line)["reason"] == event.reason[:1000]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"createdAt":"2026',
        b"[]",
        b"null",
        b'{"reason":"x"}',
        b'{"createdAt":1}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_event_is_none(line):
    """A line that a crash cut, or that another program wrote."""
    assert decode_event(line) is None


@given(st.binary())
def test_no_bytes_break_the_reader(data):
    """Whatever a disk makes of them."""
    found = decode_event(data)
    assert found is None or json.dumps(found)
