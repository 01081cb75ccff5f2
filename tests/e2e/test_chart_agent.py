"""What a release does to a node: the real process with the arguments that the chart gives it."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from realdaemon import running_alone

from koord.api.qos import KubeQoS
from koordlet.plugin.testing import FakeHost

PATIENCE = 60.0  # real seconds
UNLIMITED = "-1"


@pytest.fixture
def arguments(installed: Any) -> Callable[[dict[str, Any]], list[str]]:
    """Those of the agent, but for the directories, which are those of a fake host here."""

    def arguments(values: dict[str, Any]) -> list[str]:
        [daemonset] = [each for each in installed(values) if each["kind"] == "DaemonSet"]
        [container] = daemonset["spec"]["template"]["spec"]["containers"]
        return [each for each in container["args"] if "root-dir=" not in each]

    return arguments


async def squeezed(socket: Path) -> dict[str, Any]:
    """The value that limits the CPU of best-effort pods, once the agent has decided about it."""
    connector = aiohttp.UnixConnector(str(socket))
    async with aiohttp.ClientSession(connector=connector) as ctl, asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectorError):  # it starts
                async with ctl.get("http://koordlet/explain") as answer:
                    values: list[dict[str, Any]] = (await answer.json())["values"]
                for value in values:
                    if value["resource"] == "cpu_quota":
                        return value
            await asyncio.sleep(0.1)


def quota(host: FakeHost) -> str:
    return host.qos_group(KubeQoS.BEST_EFFORT).read("cpu/cpu.cfs_quota_us")


async def test_a_first_installation_changes_nothing(
    arguments: Callable[[dict[str, Any]], list[str]], tmp_path: Path
) -> None:
    """Best-effort pods are to be squeezed; it says so, and no value is another one."""
    hosts: list[FakeHost] = []
    async with running_alone(tmp_path / "agent", "n1", *arguments({}), lay_out=hosts.append):
        value = await squeezed(tmp_path / "agent/run/ctl.sock")
        assert (value["state"], quota(hosts[0])) == ("would", UNLIMITED)
        assert value["wanted"] > 0


async def test_the_end_of_a_release_restores(
    arguments: Callable[[dict[str, Any]], list[str]], tmp_path: Path
) -> None:
    """`helm uninstall` ends the pods: the kubelet sends SIGTERM, and waits for the process."""
    hosts: list[FakeHost] = []
    acting = arguments({"koordlet": {"dryRun": False}})
    async with running_alone(tmp_path / "agent", "n1", *acting, lay_out=hosts.append):
        value = await squeezed(tmp_path / "agent/run/ctl.sock")
        assert value["state"] == "in force"
        assert int(quota(hosts[0])) > 0

    assert quota(hosts[0]) == UNLIMITED
