"""The budget of evictions holds across restarts, whatever became of its file."""

import errno
import json

import pytest

from koord.util import ownedfiles
from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.evictions.limits import EvictionBudget

BOOT = "boot-1"


@pytest.fixture
def open_budget(tmp_path, clock):
    """The budget as a start of the daemon finds it."""

    def make(limit: int = 2, boot_id: str = BOOT) -> EvictionBudget:
        return EvictionBudget(
            lambda: limit, clock, directory=OwnedDirectory.open(tmp_path), boot_id=boot_id
        )

    return make


async def test_a_restart_does_not_make_room(open_budget, clock) -> None:
    """However often the daemon crashes; time does, also while it is away."""
    before = open_budget()
    before.take()
    clock.tick(1200)
    before.take()
    await before.save()

    after = open_budget()
    assert (after.used, after.wait) == (2, 2400)
    clock.suspend(2400)
    assert (open_budget().used, open_budget().wait) == (1, 0)


async def test_a_reboot_begins_anew(open_budget) -> None:
    """Times since boot mean nothing then."""
    budget = open_budget()
    budget.take()
    await budget.save()

    assert open_budget(boot_id="boot-2").used == 0


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'"x"', b"\xff", b'{"boot_id": "boot-1"}',
     b'{"boot_id": "boot-1", "used": 7}', b'{"boot_id": "boot-1", "used": ["x"]}',
     b'{"boot_id": "boot-1", "used": [true]}', b'{"boot_id": "boot-1", "used": [NaN]}',
     b'{"boot_id": "boot-1", "used": [1e999]}', b"[" * 100_000, b" " * 100_000],
)  # fmt: skip
def test_a_spoilt_file_counts_as_none(open_budget, tmp_path, capsys, content) -> None:
    """The daemon starts, and the log says why the past is forgotten."""
    (tmp_path / "evictions.json").write_bytes(content)

    assert open_budget().used == 0
    assert "eviction_budget.dropped" in capsys.readouterr().err


def test_times_of_the_future_count_from_now(open_budget, tmp_path) -> None:
    """They would hold for ever."""
    content = {"boot_id": BOOT, "used": [1e12]}
    (tmp_path / "evictions.json").write_text(json.dumps(content))

    assert open_budget(limit=1).wait == 3600


async def test_a_full_disk_is_reported_and_the_count_goes_on(
    open_budget, monkeypatch, capsys
) -> None:
    """In memory; once in the log, until it is mended."""
    budget = open_budget()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ownedfiles, "_write_durably", full)
        for _ in range(2):
            budget.take()
            await budget.save()
    assert "No space left" in budget.problem
    assert budget.wait > 0
    await budget.save()

    assert budget.problem == ""
    said = capsys.readouterr().err
    assert (said.count("not_saved"), said.count("eviction_budget.saved")) == (1, 1)


async def test_the_file_is_saved_before_the_request(make_bench, clock, tmp_path) -> None:
    """So that a crash between the two does not make room."""
    bench = make_bench(clock, tmp_path)
    seen = []

    async def look(pod: object, grace_seconds: object) -> None:
        seen.extend(json.loads((tmp_path / "evictions.json").read_text())["used"])
        raise SystemError

    bench.api.evict = look
    await bench.evictor.evict(bench.request("crunch"))

    assert seen == [clock.boottime()]
