"""Watch streams: lines, events, and servers that die without a word."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.kube import errors
from koord.kube.client import ApiClient, Lines, WatchEvent, WatchEventType, WatchLimits
from tests.support.kube.apiserver import ApiServer, line, status_object
from tests.support.kube.faults import begin, endless, refuse

PATH = "/api/v1/pods"
LIMITS = WatchLimits(seconds=300)
POD = {"metadata": {"name": "p", "namespace": "d", "resourceVersion": "5"}}


async def collect(client: ApiClient, limits: WatchLimits = LIMITS) -> list[WatchEvent]:
    async with client.watch(PATH, {"resourceVersion": "4"}, limits) as events:
        return [event async for event in events]


@given(
    lines=st.lists(
        st.binary(min_size=1, max_size=50).filter(lambda b: b.strip() and b"\n" not in b)
    ),
    cuts=st.lists(st.integers(1, 20)),
)
def test_lines_come_out_whole_however_they_arrive(lines: list[bytes], cuts: list[int]) -> None:
    """TCP knows no lines."""
    stream = b"".join(line + b"\n" for line in lines) + b"half"
    splitter, found = Lines(100, "the test"), []
    while stream:
        cut = cuts.pop() if cuts else 7
        found += splitter.feed(stream[:cut])
        stream = stream[cut:]

    assert found == lines


def test_an_endless_line_is_refused_early() -> None:
    """Memory is bounded by the limit and one piece."""
    splitter = Lines(1000, "the test")
    for _ in range(10):
        assert list(splitter.feed(b"x" * 100)) == []

    with pytest.raises(errors.BadResponse, match="at most 1000 bytes"):
        list(splitter.feed(b"x"))


async def test_events(server: ApiServer, client: ApiClient) -> None:
    """All kinds, in order, also when lines are torn apart."""
    stream = b"".join(line(kind, POD) for kind in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"))
    server.script(begin(stream[:30], stream[30:200], b"\n", stream[200:]))

    found = await collect(client)

    assert [event.type for event in found] == list(WatchEventType)
    assert all(event.object == POD for event in found)
    assert server.requests[0].query == {
        "resourceVersion": "4",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "300",
    }


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([line("ERROR", status_object(410, "Expired"))], errors.Gone),
        ([line("ERROR", status_object(500, "InternalError"))], errors.ServerError),
        ([line("ERROR", {"kind": "Status"})], errors.ServerError),
        ([b'{"type": "ADDED"}\n'], errors.BadResponse),
        ([b'{"type": "BORN", "object": {}}\n'], errors.BadResponse),
        ([b"[]\n"], errors.BadResponse),
        ([b'{"type": "ADDED", "object": {"metadata"\n'], errors.BadResponse),
        ([b"\xff\n"], errors.BadResponse),
    ],
)
async def test_what_is_no_event_ends_the_watch(
    server: ApiServer, client: ApiClient, pieces: list[bytes], kind: type[Exception]
) -> None:
    """After a line that is not understood, the copy may be wrong."""
    server.script(begin(*pieces, then_hang=True))

    with pytest.raises(kind):
        await collect(client)


async def test_http_410(server: ApiServer, client: ApiClient) -> None:
    """The server may say so before the stream begins."""
    server.script(refuse(410, "Expired"))

    with pytest.raises(errors.Gone):
        await collect(client)


async def test_half_a_line_is_dropped(server: ApiServer, client: ApiClient) -> None:
    """Whether the connection ends well or not."""
    half = line("MODIFIED", POD)[:40]
    server.script(begin(line("ADDED", POD), half), begin(line("ADDED", POD), half, then_cut=True))

    assert [event.type for event in await collect(client)] == ["ADDED"]
    with pytest.raises(errors.Unreachable):
        await collect(client)


async def test_an_endless_line(server: ApiServer, client: ApiClient) -> None:
    """It ends at the limit."""
    server.script(endless(b'{"type": "ADDED", "object": {"a": "' + b"x" * 1000))

    with pytest.raises(errors.BadResponse, match="at most 100000 bytes"):
        await collect(client, WatchLimits(seconds=300, line_bytes=100_000))


@pytest.mark.parametrize(("bookmark", "seconds"), [(False, 315), (True, 150)])
async def test_silence_means_a_dead_connection(
    server: ApiServer, client: ApiClient, clock, pass_time, bookmark: bool, seconds: int
) -> None:
    """A server that has sent a bookmark would send another; any server would end the watch."""
    pieces = [line("BOOKMARK", POD)] if bookmark else []
    server.script(begin(*pieces, then_hang=True))
    begun = clock.monotonic()
    collecting = asyncio.ensure_future(collect(client))

    await pass_time(collecting.done, step=2)

    with pytest.raises(errors.TimedOut, match=f"wanted the next event within {seconds} s"):
        await collecting
    assert seconds <= clock.monotonic() - begun <= seconds + 60
