"""The keeper of the objects: the agent yields to koord-manager, and takes over when it is gone."""

import asyncio

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from koord.kube.leases import read_holding
from tests.support.kube.faults import hang, refuse

from .conftest import ALL_LEASES, CONFIGS, METRICS, SLOS, Agent, written_by

HELD = "left alone: koord-manager holds its Lease"
OURS = "kept: no koord-manager is seen"
HOURS = pytest.mark.parametrize(
    "hour", [5, 6, 7]
)  # by the manager's clock; ours says something else


async def take(agent: Agent) -> None:
    """Start where there is no manager, and wait until everything is in line."""
    await agent.start()
    await agent.until(lambda: agent.found(METRICS) and agent.found(SLOS))
    await agent.until(lambda: agent.server.watching == 5)


async def meet(agent: Agent, hour: int = 6) -> None:
    """Let a manager begin to renew its Lease."""
    agent.renew(f"2026-07-24T{hour:02}:00:00Z")
    await agent.until(lambda: agent.state("NodeSLO") == HELD)
    agent.renew(f"2026-07-24T{hour:02}:00:02Z")
    await agent.until(lambda: agent.server.watching == 3)  # of what is ours no more


async def test_a_manager_is_left_alone(agent: Agent) -> None:
    """From the first second: nothing is created, and its configuration is not even looked at."""
    agent.renew("2026-07-24T06:00:00Z")
    await agent.start()
    await meet(agent)
    for minute in range(30):
        agent.renew(f"2026-07-24T07:{minute:02}:00Z")
        await agent.minutes(1)

    assert agent.writes() == []
    assert agent.server.asked("list", CONFIGS) == []
    assert agent.held("nodemetric") == agent.held("nodeslo") == 0
    assert agent.reasons() == ""


async def test_a_manager_that_comes_is_noticed_at_once(agent: Agent) -> None:
    """What it wants is not touched from then on; said once."""
    await take(agent)
    with capture_logs() as logs:
        await meet(agent)
        agent.configure(cpu_burst={"clusterStrategy": {"policy": "auto"}})
        await agent.minutes(5)
    said = [(entry["event"], entry["object"]) for entry in logs if "manager_role" in entry["event"]]
    assert sorted(said) == [
        ("manager_role.released", "nodemetric"),
        ("manager_role.released", "nodeslo"),
    ]
    assert agent.held("nodeslo") == 0
    assert agent.server.asked("patch") == []


async def test_a_write_on_its_way_is_given_up(agent: Agent) -> None:
    """It would come after the manager's."""
    await take(agent)
    given_up = asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse:
        try:
            return await hang(request)
        finally:
            given_up.set()

    agent.server.script(hold, method="PATCH", path=SLOS)
    await agent.minutes(1)
    agent.configure(cpu_burst={"clusterStrategy": {"policy": "auto"}})
    await agent.until(lambda: agent.server.asked("patch", SLOS))
    agent.renew("2026-07-24T06:00:00Z")
    await agent.until(given_up.is_set)
    assert agent.state("NodeSLO") == HELD
    assert agent.reasons() == ""


async def test_a_lease_in_use_is_looked_at_rarely(agent: Agent) -> None:
    """It changes every two seconds: to watch that on each node costs more than all reports."""
    await take(agent)
    await meet(agent)
    before = len(agent.server.requests)
    for minute in range(60):
        agent.renew(f"2026-07-24T07:{minute:02}:00Z")
        await agent.minutes(1)

    looks = [entry for entry in agent.server.requests[before:] if "leases" in entry.path]
    assert 2 <= len(looks) <= 26
    assert agent.state("NodeSLO") == HELD


@HOURS
async def test_a_manager_that_was_seen_has_ten_minutes(agent: Agent, hour: int) -> None:
    """To come back on another node. Whatever its clock says, and however it has ended."""
    await take(agent)
    await meet(agent, hour)
    if hour == 5:
        agent.server.objects.delete(ALL_LEASES, "koordinator-system/koordinator-manager")
    if hour == 7:
        agent.renew("2026-07-24T07:00:03Z", holder="")
    await agent.minutes(9.5)
    assert agent.state("NodeSLO") == HELD

    agent.configure(cpu_burst={"clusterStrategy": {"policy": "auto"}})
    await agent.minutes(2)
    await agent.until(lambda: agent.state("NodeSLO") == OURS)
    await agent.until(lambda: agent.found(SLOS)["spec"]["cpuBurstStrategy"]["policy"] == "auto")


async def test_a_lease_without_renewals_is_a_leftover(agent: Agent) -> None:
    """Of a manager that was removed before we came: a minute is enough to be sure."""
    agent.renew("2030-01-01T00:00:00Z")
    await agent.start()
    await agent.until(lambda: agent.state("NodeMetric") == HELD)
    await agent.minutes(0.5)
    assert agent.writes() == []

    await agent.minutes(1)
    await agent.until(lambda: agent.found(METRICS) and agent.found(SLOS))
    agent.renew("2030-01-01T00:00:02Z")
    await agent.until(lambda: agent.state("NodeMetric") == HELD)


async def test_an_absence_of_the_api_server_is_not_one_of_the_manager(agent: Agent) -> None:
    """Nobody could renew; it has all its time when the server is back."""
    await take(agent)
    await meet(agent)
    await agent.server.stop()
    for _ in range(30):
        await agent.clock.advance(60)
        await asyncio.sleep(0.001)
    await agent.server.start()
    await agent.minutes(5)
    assert agent.state("NodeSLO") == HELD

    await agent.minutes(8)
    await agent.until(lambda: agent.state("NodeSLO") == OURS)


async def test_without_a_look_at_the_lease_nothing_is_done(agent: Agent) -> None:
    """Another agent may hold it: the right to see it is needed first."""
    agent.server.script(*[refuse(403)] * 99, path=ALL_LEASES)
    agent.server.script(*[refuse(403)] * 99, path="/apis/coordination.k8s.io/v1/namespaces")
    await agent.start()
    await agent.until(lambda: "403" in agent.reasons())
    await agent.minutes(10)
    assert agent.writes() == []
    assert agent.state("NodeMetric") == "left alone: owner not known yet"

    agent.server.unscript()
    await agent.minutes(2)
    await agent.until(lambda: agent.found(METRICS))


async def test_an_object_with_another_writer_is_left_alone(agent: Agent) -> None:
    """For an hour, and longer each time; the other object is kept."""
    agent.configure(cpu_burst={"clusterStrategy": {"policy": "auto"}})
    agent.store(SLOS, written_by("kubectl-edit", {"cpuBurstStrategy": {"policy": "none"}}))
    await agent.start()
    await agent.until(lambda: agent.found(METRICS))
    await agent.until(lambda: agent.state("NodeSLO") == "left alone: kubectl-edit writes its spec")
    assert (agent.held("nodemetric"), agent.held("nodeslo")) == (1, 0)
    await agent.minutes(59)
    assert agent.server.asked("patch", SLOS) == []

    await agent.minutes(8)
    await agent.until(lambda: agent.found(SLOS)["spec"]["cpuBurstStrategy"]["policy"] == "auto")
    again = written_by("kubectl-edit", {"cpuBurstStrategy": {}}, time="2026-07-24T08:00:00Z")
    agent.store(SLOS, again)
    await agent.until(lambda: agent.state("NodeSLO") == "left alone: kubectl-edit writes its spec")
    await agent.minutes(70)
    assert agent.found(SLOS)["spec"] == {"cpuBurstStrategy": {}}


@pytest.mark.parametrize(
    "kind",
    [
        {"manager": "koordlet-duties"},
        {"manager": "koordlet", "field": "f:status", "subresource": "status"},
        {"manager": "kube-controller-manager", "field": "f:metadata"},
        {"manager": "scaler", "subresource": "scale"},
    ],
)
async def test_others_may_write_anything_but_the_spec(agent: Agent, kind: dict[str, str]) -> None:
    """Reports, labels and the agent itself show no manager."""
    agent.store(SLOS, written_by(spec={}, **kind))
    await agent.start()
    await agent.until(lambda: "cpuBurstStrategy" in agent.found(SLOS)["spec"])
    assert agent.state("NodeSLO") == OURS


async def test_nothing_is_written_beside_another_agent(agent: Agent) -> None:
    """It may be the one that the cluster is to hear."""
    agent.observe_only = "Koordinator's koordlet is here"
    await agent.start()
    await agent.until(lambda: agent.server.watching == 4)
    await agent.minutes(10)
    assert agent.writes() == []
    assert agent.state("NodeSLO") == "left alone: Koordinator's koordlet is here"

    agent.observe_only = ""
    await agent.minutes(1)
    await agent.until(lambda: agent.found(METRICS) and agent.found(SLOS))


@settings(max_examples=30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["holderIdentity", "renewTime", "leaseDurationSeconds", "x"]), inner
            )
        ),
    )
)
def test_an_odd_lease_breaks_nothing(spec: object) -> None:
    """Whatever is in it: held for a sane time, or not held."""
    found = read_holding({"metadata": {}, "spec": spec})
    assert found is None or 0 < found.duration <= 120
