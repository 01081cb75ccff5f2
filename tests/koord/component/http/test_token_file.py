"""A guard with one token in a file, while the file is replaced under it."""

import asyncio

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from koord.component.http.guard import INTERVAL, TokenFile, TokenFileError
from koord.component.http.responses import HttpError
from koord.util.health import HealthStatus
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop

TOKEN, OTHER = "a-token-of-this-server", "another-one-that-follows"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


async def admitted(guard, *values):
    """Whether a request with these Authorization headers gets in."""
    request = make_mocked_request("POST", "/", [("Authorization", value) for value in values])
    try:
        await guard(request)
    except HttpError:
        return False
    return True


async def test_who_brings_the_token_is_let_in(path):
    guard = TokenFile(path)

    assert await admitted(guard, f"Bearer {TOKEN}")
    assert await admitted(guard, f"bearer {TOKEN}")
    assert not await admitted(guard)
    assert not await admitted(guard, f"Bearer {TOKEN}x")
    assert not await admitted(guard, f"Basic {TOKEN}")
    assert not await admitted(guard, f"Bearer {TOKEN}", f"Bearer {TOKEN}")


@pytest.mark.parametrize("text", ["", "short", "x" * 5000, "two words that are long", "ä" * 30])
def test_a_file_without_a_token_ends_the_start(path, text):
    path.write_text(text)

    with pytest.raises(TokenFileError, match="wanted a token of 16 to 4096"):
        TokenFile(path)


def test_no_file_ends_the_start(path):
    with pytest.raises(TokenFileError, match="found No such file"):
        TokenFile(path.with_name("none"))


async def test_a_new_token_counts_and_a_bad_one_does_not(path):
    """While the file cannot be used the last token counts."""
    clock = SimulatedClock()
    guard, stop = TokenFile(path), Stop(clock)
    following = asyncio.create_task(guard.run(stop))

    async def put(text, until):
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)
        while not until():
            await clock.advance(INTERVAL)
            await clock.settle()

    await put("bad", lambda: guard.health().status is HealthStatus.DEGRADED)
    assert await admitted(guard, f"Bearer {TOKEN}")
    await put(OTHER, lambda: guard.health().status is HealthStatus.OK)
    assert await admitted(guard, f"Bearer {OTHER}")
    assert not await admitted(guard, f"Bearer {TOKEN}")
    stop.set()
    await following


@given(data=st.binary(max_size=80))
def test_any_bytes_are_a_token_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any-token"
    path.write_bytes(data)
    try:
        TokenFile(path)
    except TokenFileError:
        assert len(data.strip()) < 16 or not data.strip().isalnum()
