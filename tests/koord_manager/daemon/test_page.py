"""What a whole manager gives its status page."""

import json
from typing import Any

import aiohttp

from koord_manager import page
from tests.koord_manager.daemon.test_faults import NODES, PODS, batch, cluster, metric  # noqa: F401
from tests.support.manager import node, pod, quantities

BATCH_CPU = "kubernetes.io/batch-cpu"


async def look(replica: Any) -> dict[str, Any]:
    """All sections: the first line of the stream."""
    url = f"http://127.0.0.1:{replica.port}/page/stream"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        line = json.loads(await answer.content.readline())
    assert line["whole"] is True
    return dict(line["sections"])


async def test_the_map_has_what_is_offered_and_held(start, server, let_pass, pass_time):
    """By node, in the order of their names; a node without an offer has none."""
    bare = node({"cpu": "1", "memory": "1G"})
    bare["metadata"] |= {"name": "n0", "uid": "uid-n0"}
    server.objects.create(NODES, bare)
    holder = pod("be", {BATCH_CPU: "5000"}, qos="BE")
    server.objects.create(PODS, holder)
    replica = start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)
    await let_pass(3)

    sections = await look(replica)

    found = sections["map"]
    assert (found["nodes"], found["left_out"]) == (["n0", "n1"], 0)
    assert found["resources"][BATCH_CPU] == {"offered": [0, 25_000], "held": [0, 5000]}
    assert found["states"][1] == ["enabled"]
    assert sections["state"]["leads"] is True
    assert sections["state"]["counts"] == {"enabled": 2, "stale": 1}
    assert sections["state"]["webhook"] is False
    assert "BatchResource" in sections["state"]["plugins"]
    assert {"name", "status", "reason"} == set(sections["health"]["parts"][0])


async def test_a_node_is_explained(start, server, pass_time):
    replica = start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)

    status, text = await replica.get("/page/detail/node?name=n1")

    assert status == 200
    assert json.loads(text)["resources"][BATCH_CPU]["offered"] == "25k"
    for other in ("node?name=none", "secret?name=n1", f"node?name={'n' * 300}", "node?name="):
        assert (await replica.get(f"/page/detail/{other}"))[0] == 404


async def test_the_data_is_for_who_may_see_the_configuration(start, server, pass_time):
    replica = start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)
    other = {"Host": "evil.example"}

    for path in ("/page/stream", "/page/detail/node?name=n1"):
        assert (await replica.get(path, other))[0] == 401


async def test_it_can_be_switched_off(start, server, pass_time):
    replica = start("apiVersion: manager/v1alpha1\nkind: ManagerConfiguration\n",
                    "--status-page=false")  # fmt: skip
    await pass_time(lambda: batch(server) == "25k", step=0.25)

    assert (await replica.get("/"))[0] == 404
    assert (await replica.get("/page/stream"))[0] == 404


async def test_what_is_beyond_the_bounds_is_counted(start, server, pass_time, monkeypatch):
    monkeypatch.setattr(page, "MAX_NODES", 1)
    monkeypatch.setattr(page, "MAX_RESOURCES", 1)
    other = node(quantities(cpu=100, memory="120G"))
    other["metadata"] |= {"name": "n2", "uid": "uid-n2"}
    server.objects.create(NODES, other)
    replica = start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)

    found = (await look(replica))["map"]

    assert (found["nodes"], found["left_out"]) == (["n1"], 1)
    assert list(found["resources"]) == [BATCH_CPU]
