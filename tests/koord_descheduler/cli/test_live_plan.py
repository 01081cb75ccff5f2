"""The command `koord-descheduler plan` on a live cluster: it lists, and writes nothing."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from koord.controlplane.offline import ClusterReadError, read_cluster
from koord.kube.kubeconfig import find_config
from koord_descheduler.cli.descheduler import main
from koord_descheduler.cli.plan import main as plan
from tests.support.clusters import node, pod
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.kube.faults import refuse

CONFIG: dict[str, Any] = {
    "apiVersion": "descheduler/v1alpha2",
    "kind": "DeschedulerConfiguration",
    "deschedulingInterval": "10s",
    "profiles": [
        {
            "name": "p",
            "plugins": {
                "balance": {"enabled": [{"name": "FragmentationAware"}]},
                **{
                    point: {"disabled": [{"name": "*"}], "enabled": [{"name": "DefaultEvictor"}]}
                    for point in ("evict", "filter")
                },
            },
        }
    ],
}


@pytest.fixture
def argv(server: ApiServer, tmp_path: Path) -> list[str]:
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.url))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    config = f"--config={tmp_path / 'config.json'}"
    return [f"--kubeconfig={tmp_path / 'kubeconfig'}", config, "-o", "json"]


async def test_a_live_cluster_is_planned_without_a_write(
    server: ApiServer, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.objects.create("/api/v1/nodes", node("n1"))
    server.objects.create("/api/v1/nodes", node("n2"))
    uneven = pod("big", "n1", requests={"cpu": "3"})
    owners = [{"kind": "ReplicaSet", "name": "big", "uid": "u", "controller": True}]
    uneven["metadata"]["ownerReferences"] = owners
    server.objects.create("/api/v1/pods", uneven)

    assert await asyncio.to_thread(plan, argv) == 0

    report = json.loads(capsys.readouterr().out)
    assert [(one["pod"], one["action"], one["candidates"]) for one in report["pods"]] == [
        ("default/big", "evict", ["n2"])
    ]
    assert "input" not in report
    assert all(request.verb in ("list", "watch") for request in server.requests)


async def test_lists_that_do_not_come_are_named(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.url))
    config = find_config(str(tmp_path / "kubeconfig"), {}, home=tmp_path)
    assert config is not None
    server.script(*[refuse(403)] * 100, path="/api/v1/pods")

    with pytest.raises(ClusterReadError, match="not listed yet: pod"):
        await read_cluster(config, "test", print, list_timeout=2.0)


def test_without_a_cluster_a_dump_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    assert main(["plan", "--config", str(tmp_path / "config.json")]) == 1
    assert "wanted an API server, or a dump" in capsys.readouterr().err
