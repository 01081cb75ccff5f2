"""A config file under a running daemon whose document is a component config, not flags."""

import asyncio
from pathlib import Path

import pytest
import structlog.testing

from koord.api.fields import Fields
from koord.component.config.document import parse_document
from koord.component.config.follower import AppliedConfig, ConfigFollower
from koord.util.errors import InvalidObject
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from tests.support.kube.inline_executor import InlineExecutor

HEAD = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n"


def parse(data: bytes, path: Path) -> dict[str, object]:
    """Read two fields of a component config strictly."""
    document = parse_document(data, path)
    fields = Fields(document.values, str(path))
    if unknown := document.values.keys() - {"apiVersion", "kind", "dryRun", "leaderElection"}:
        raise InvalidObject(str(path), wanted="known fields", found=sorted(unknown))
    return {"dryRun": fields.boolean("dryRun"), "leaderElection": fields.get("leaderElection")}


class Daemon:
    """Applies dryRun at once; leaderElection needs a restart."""

    def __init__(self, path: Path) -> None:
        self.clock = SimulatedClock()
        self.stop = Stop(self.clock)
        self.config = parse(path.read_bytes(), path)
        self.follower = ConfigFollower(path, parse, self.apply)

    def apply(self, read: dict[str, object]) -> AppliedConfig:
        waits = (
            ("leaderElection",) if read["leaderElection"] != self.config["leaderElection"] else ()
        )
        changed = ("dryRun",) if read["dryRun"] != self.config["dryRun"] else ()
        self.config = {**self.config, "dryRun": read["dryRun"]}
        return AppliedConfig(changed=changed, needs_restart=waits)

    async def seconds(self, count: int) -> None:
        """Let time pass, and threads end that read the file."""
        for _ in range(count * 10):
            await self.clock.advance(0.1)
            await asyncio.sleep(0.002)


@pytest.fixture
async def daemon(tmp_path):
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    path = tmp_path / "descheduler.yaml"
    path.write_text(f"{HEAD}dryRun: false\n")
    daemon = Daemon(path)
    task = asyncio.create_task(daemon.follower.run(daemon.stop), name="config")
    yield daemon
    daemon.stop.set()
    await task


async def test_a_component_config_is_applied_when_it_changes(daemon, tmp_path):
    (tmp_path / "descheduler.yaml").write_text(f"{HEAD}dryRun: true\nleaderElection: {{}}\n")
    with structlog.testing.capture_logs() as logs:
        await daemon.seconds(3)
    assert daemon.config == {"dryRun": True, "leaderElection": None}
    assert daemon.follower.needs_restart == ("leaderElection",)
    assert [entry["event"] for entry in logs] == ["config.read", "config.restart_required"]


@pytest.mark.parametrize("content", ["dryRun: maybe\n", "dryRan: true\n", "dryRun: [\n", "- a\n"])
async def test_a_rejected_one_is_reported_and_the_last_good_one_stays(daemon, tmp_path, content):
    path = tmp_path / "descheduler.yaml"
    path.write_text(HEAD + content if content != "- a\n" else content)
    with structlog.testing.capture_logs() as logs:
        await daemon.seconds(4)
    assert daemon.config == {"dryRun": False, "leaderElection": None}
    assert [entry["event"] for entry in logs] == ["config.rejected"]
    assert str(path) in daemon.follower.health().reason

    path.write_text(f"{HEAD}dryRun: true\n")
    await daemon.seconds(3)
    assert daemon.config["dryRun"] is True
    assert not daemon.follower.health().reason
