"""What only the leader may do is asked right before each request."""

import pytest

from koord.controlplane.leaderclient import LeaderClient, NotLeading
from koord.controlplane.testing.cluster import FakeCluster
from koord.controlplane.testing.server import ScriptedServer
from koord.kube.errors import NotFound
from koord.util.simulatedclock import SimulatedClock


async def test_only_the_leader_changes_something() -> None:
    cluster = FakeCluster(SimulatedClock())
    server, leads = ScriptedServer(cluster), True
    client = LeaderClient(server, cluster.clock, lambda: leads)
    path = "/api/v1/namespaces/default/configmaps"
    body = {"metadata": {"name": "a", "namespace": "default"}}

    with pytest.raises(NotFound):  # the server's own answer
        await client.create(path, body)
    leads = False
    calls = (
        client.create(path, body),
        client.replace(f"{path}/a", body),
        client.merge_patch(f"{path}/a", body),
        client.post(f"{path}/a/binding", body),
        client.delete(f"{path}/a"),
    )
    for call in calls:
        with pytest.raises(NotLeading, match="not sent, as this replica does not lead"):
            await call

    with pytest.raises(NotFound):
        await client.get(f"{path}/a")
    assert [call.method for call in server.calls] == ["POST", "GET"]
