"""What a whole daemon gives its status page."""

import json

from koord.api.qos import KubeQoS
from koordlet.daemon.servers import build_agent_page
from koordlet.server.page import ChangeAnnotations


async def test_a_daemon_shows_what_it_measures_and_runs(daemon, built):
    """Node, pods, plugins, health and NodeSLO are those of the other endpoints."""
    daemon.busy_pod("p1", KubeQoS.BEST_EFFORT, cores=0.5)
    await daemon.start()
    await daemon.seconds(4)
    page = build_agent_page(built.components, ChangeAnnotations(daemon.clock.wall))
    answer = json.loads(json.dumps(await page.snapshot(), allow_nan=False))
    sections = answer["sections"]
    assert sections["charts"]["cpu"]["series"]["node"][-1] == 2.0
    [pod] = sections["pods"]
    assert (pod["uid"], pod["cpu_cores"]) == ("p1", 0.5)
    shown = {plugin["name"]: plugin["enabled"] for plugin in sections["plugins"]}
    assert shown == {plugin["name"]: plugin["enabled"] for plugin in await daemon.ctl("plugins")}
    assert sections["dryRun"] == await daemon.ctl("dry-run")
    assert {part["name"] for part in sections["health"]["parts"]} >= {"sampling", "plugin Probe"}
    assert sections["nodeslo"]["known"] is False

    await daemon.seconds(2)
    later = await page.changes(answer["now"])
    assert "whole" not in later
    assert "nodeslo" not in later["sections"]
    assert len(later["sections"]["charts"]["cpu"]["t"]) == 2
    explained = await page.detail("pod", "p1")
    assert explained["charts"]["cpu"]["series"]["usage"][-1] == 0.5
    assert (await page.detail("audit", ""))["enabled"] is False
