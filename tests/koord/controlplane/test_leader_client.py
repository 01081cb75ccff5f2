"""What only the leader may do is asked right before each request."""

import pytest

from koord.controlplane.cluster_access import LeaderClient, NotLeader
from koord.controlplane.testing import FakeCluster, ScriptedServer
from koord.kube.errors import NotFound
from koord.util.simulatedclock import SimulatedClock


async def test_only_the_leader_changes_something() -> None:
    cluster = FakeCluster(SimulatedClock())
    server, is_leader = ScriptedServer(cluster), True
    client = LeaderClient(server, cluster.clock, lambda: is_leader)
    path = "/api/v1/namespaces/default/configmaps"
    body = {"metadata": {"name": "a", "namespace": "default"}}

    with pytest.raises(NotFound):  # the server's own answer
        await client.create(path, body)
    is_leader = False
    calls = (
        client.create(path, body),
        client.replace(f"{path}/a", body),
        client.merge_patch(f"{path}/a", body),
        client.post(f"{path}/a/binding", body),
        client.delete(f"{path}/a"),
    )
    for call in calls:
        with pytest.raises(NotLeader, match="not sent, as this replica does not lead"):
            await call

    with pytest.raises(NotFound):
        await client.get(f"{path}/a")
    assert [call.method for call in server.calls] == ["POST", "GET"]
