"""The cluster state is as the API server has it, again after any fault."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from koord.cluster.keptfields import KeptFields
from koord.cluster.kinds import BUDGET, CLONE_SET, NODE, NODE_METRIC, POD, SERVICE
from koord.cluster.state import ClusterState
from koord.cluster.storage import (
    CLAIM,
    CSI_DRIVER,
    CSI_NODE,
    STORAGE_CAPACITY,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
)
from koord.controlplane.clusterfeed import SCHEDULER_KINDS, SERVED_KINDS, ClusterFeed, ServedKind
from koord.kube.client import PODS, ApiClient
from koord.util.health import OK, HealthStatus
from koord.util.stop import Stop
from tests.support.clusters import node, pod
from tests.support.kube.apiserver import ApiServer, line, status_object
from tests.support.kube.faults import begin, refuse

NODES_PATH, PODS_PATH = "/api/v1/nodes", "/api/v1/pods"
REPORTS = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
CLONE_SETS = "/apis/apps.kruise.io/v1alpha1/clonesets"


class Following:
    """A feed that runs."""

    def __init__(self, client: ApiClient, clock, served) -> None:
        self.state = ClusterState()
        self.feed = ClusterFeed(client, self.state, clock, served=served, draw=lambda: 0.0)
        self.stop = Stop(clock)
        self.task = asyncio.ensure_future(self.feed.run(self.stop))

    def has(self, *keys: str) -> bool:
        return sorted(self.state.keys(POD)) == sorted(keys)

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 60)


Follow = Callable[..., Awaitable[Following]]


@pytest.fixture
async def follow(client: ApiClient, clock) -> AsyncIterator[Follow]:
    running: list[Following] = []

    async def follow(*kinds: Any, served: dict[Any, ServedKind] | None = None) -> Following:
        kinds = kinds or (POD,)
        running.append(
            Following(client, clock, served or {kind: SERVED_KINDS[kind] for kind in kinds})
        )
        return running[-1]

    yield follow
    for each in running:
        await each.end()


@pytest.fixture
async def following(server: ApiServer, follow: Follow, clock) -> Following:
    """A feed that has seen the pod default/a and watches."""
    server.objects.create(PODS_PATH, pod("a"))
    following = await follow()
    await clock.until(lambda: server.watching == 1)
    return following


def test_all_kinds_of_the_state_are_followed() -> None:
    every = set(ClusterState().kinds)
    assert set(SCHEDULER_KINDS) == every
    assert every - set(SERVED_KINDS) == {
        SERVICE,
        STORAGE_CLASS,
        CSI_NODE,
        CSI_DRIVER,
        STORAGE_CAPACITY,
        VOLUME_ATTACHMENT,
    }


async def test_lists_then_changes(server: ApiServer, follow: Follow, clock) -> None:
    """All kinds, side by side; health says which are still to come."""
    server.objects.create(NODES_PATH, node("n1"))
    server.objects.create(PODS_PATH, pod("a", "n1"))
    server.script(refuse(503), path="/apis/policy")
    following = await follow(*SERVED_KINDS)
    assert following.feed.health().reason.startswith("not listed yet: node, pod, ")
    await clock.until(lambda: server.watching == len(SERVED_KINDS) - 1)

    assert following.feed.health().status is HealthStatus.UNHEALTHY
    assert following.feed.health().reason == f"not listed yet: {BUDGET.name}"
    assert following.feed.kinds_health()[BUDGET.name].status is HealthStatus.DEGRADED
    waiting = asyncio.ensure_future(following.feed.wait_synced())
    await clock.advance(5)
    await clock.until(lambda: server.watching == len(SERVED_KINDS))
    await waiting
    assert following.feed.health() == OK
    assert [each.name for each in following.state.pods_of_node("n1")] == ["a"]

    server.objects.create(PODS_PATH, pod("b", "n1"))
    server.objects.delete(PODS_PATH, "default/a")
    server.objects.create(REPORTS, {"metadata": {"name": "n1"}})
    await clock.until(lambda: following.has("default/b") and "n1" in following.state.reports)


async def test_a_list_comes_in_pages(server: ApiServer, follow: Follow, clock) -> None:
    """A page that is refused halfway begins the list again; what went away meanwhile is gone."""
    for name in "abcde":
        server.objects.create(PODS_PATH, pod(name))
    expired = asyncio.Event()

    async def second_page(request):
        server.objects.delete(PODS_PATH, "default/a")
        expired.set()
        return await refuse(410, "Expired")(request)

    server.script(server.answer, second_page, path=PODS_PATH, watch=False)
    following = await follow(served={POD: ServedKind(PODS, page_size=2)})
    await expired.wait()
    assert following.has("default/a", "default/b")
    assert not following.feed.kinds_health()[POD.name].detail.get("synced")
    await clock.advance(5)
    await clock.until(lambda: server.watching == 1)

    assert following.has(*(f"default/{name}" for name in "bcde"))
    assert [request.query["limit"] for request in server.asked("list")] == ["2"] * 4


async def test_the_first_list_keeps_to_its_pages(server: ApiServer, following: Following) -> None:
    """The server's cache would send all at once."""
    [first] = server.asked("list")
    assert first.query == {"limit": "500"}


@pytest.mark.parametrize("as_event", [True, False])
async def test_410_lists_again(
    server: ApiServer, following: Following, clock, pass_time, as_event: bool
) -> None:
    """What the list lacks is forgotten, and health stays good."""
    gone = line("ERROR", status_object(410, "Expired"))
    server.script(begin(gone) if as_event else refuse(410, "Expired"), watch=True)
    server.silent = True
    server.objects.delete(PODS_PATH, "default/a")
    server.objects.create(PODS_PATH, pod("b"))
    with capture_logs() as logs:
        server.end_watches()
        await pass_time(lambda: following.has("default/b"))

    assert not [log for log in logs if log["log_level"] == "warning"]
    assert following.feed.kinds_health()[POD.name] == OK


async def test_a_watch_that_ends_is_resumed_where_it_was(
    server: ApiServer, following: Following, clock, pass_time
) -> None:
    """No list; bookmarks move the place on."""
    await clock.advance(300)
    server.objects.create(NODES_PATH, node("n1"))
    server.bookmark()
    await asyncio.sleep(0.05)
    server.end_watches()
    await pass_time(lambda: len(server.asked("watch")) == 2)
    server.objects.create(PODS_PATH, pod("b"))
    await clock.until(lambda: following.has("default/a", "default/b"))

    assert len(server.asked("list")) == 1
    assert server.asked("watch")[1].query["resourceVersion"] == str(server.objects.version - 1)


async def test_a_watch_that_stops_delivering_is_replaced(
    server: ApiServer, following: Following, clock, pass_time
) -> None:
    """After a bookmark, silence means that the connection has died."""
    server.bookmark()
    await asyncio.sleep(0.05)
    server.silent = True
    begun = clock.monotonic()
    await pass_time(lambda: len(server.asked("watch")) == 2)
    assert clock.monotonic() - begun < 200


async def test_ten_minutes_without_api_server(
    server: ApiServer, following: Following, clock, pass_time
) -> None:
    """The last state stays, and catches up without a list."""
    begun = clock.monotonic()
    await server.stop()
    await pass_time(lambda: clock.monotonic() - begun > 600, step=5)
    health = following.feed.kinds_health()[POD.name]
    assert health.status is HealthStatus.DEGRADED
    assert health.detail == {"synced": True}
    assert following.has("default/a")
    server.objects.delete(PODS_PATH, "default/a")
    await server.start()
    await pass_time(lambda: following.has())

    assert following.feed.kinds_health()[POD.name] == OK
    assert len(server.asked("list")) == 1


async def test_kinds_without_a_crd(server: ApiServer, follow: Follow, clock) -> None:
    """They hold nothing up. NodeMetrics are missed; Kruise's CloneSets are not."""
    server.script(*[refuse(404, "NotFound")] * 9, path=REPORTS)
    server.script(*[refuse(404, "NotFound")] * 9, path=CLONE_SETS)
    with capture_logs() as logs:
        following = await follow(NODE_METRIC, CLONE_SET)
        await following.feed.wait_synced()

    assert following.feed.health() == OK
    health = following.feed.kinds_health()
    assert "install the CRD nodemetrics" in health[NODE_METRIC.name].reason
    assert health[CLONE_SET.name] == OK
    failed = [log["watched"] for log in logs if log["event"] == "watch.failed"]
    assert failed == ["nodemetrics"]
    server.unscript()
    server.objects.create(CLONE_SETS, {"metadata": {"name": "c", "namespace": "d", "uid": "u"}})
    await clock.advance(65)
    await clock.until(lambda: list(following.state.keys(CLONE_SET)) == ["d/c"])


async def test_koordinators_role_is_enough(server: ApiServer, follow: Follow, pass_time) -> None:
    """What it does not allow is named with what is missed, and holds nothing up; pods would."""
    for path in ("/api/v1/persistentvolumes", "/api/v1/persistentvolumeclaims"):
        server.script(*[refuse(403, "Forbidden")] * 9, path=path)
    server.script(*[refuse(403, "Forbidden")] * 9, path="/api/v1/replicationcontrollers")
    server.script(*[refuse(403, "Forbidden")] * 9, path="/apis/policy")
    server.script(*[refuse(403, "Forbidden")] * 9, path="/apis/apps.kruise.io")
    following = await follow(*SERVED_KINDS)
    waiting = asyncio.create_task(following.feed.wait_synced())
    await pass_time(waiting.done)

    assert following.feed.health() == OK
    reason = following.feed.kinds_health()[BUDGET.name].reason
    assert "refused with 403" in reason
    assert "allow it in the role: only the API server knows them" in reason


async def test_a_server_that_starts_refuses_what_it_will_allow(
    server: ApiServer, follow: Follow, pass_time
) -> None:
    """kube-apiserver answers before it has read the roles: that is no response to go on with."""
    server.script(*[refuse(403, "Forbidden")] * 2, path="/api/v1/persistentvolumeclaims")
    server.objects.create(
        "/api/v1/persistentvolumeclaims",
        {"metadata": {"name": "data", "namespace": "d", "uid": "u"}},
    )
    following = await follow(CLAIM)
    waiting = asyncio.create_task(following.feed.wait_synced())
    await pass_time(waiting.done)

    assert list(following.state.keys(CLAIM)) == ["d/data"]


async def test_what_is_not_understood_stays_as_it_was(
    server: ApiServer, following: Following, clock, pass_time
) -> None:
    """By event and by list; it is named until it is mended or gone."""
    bad = pod("a", "n9") | {"spec": 5}  # as no API server has it
    with capture_logs() as logs:
        server.objects.replace(PODS_PATH, bad)
        await clock.until(lambda: following.feed.kinds_health()[POD.name] != OK)
        server.objects.compact()
        server.script(refuse(410, "Expired"), watch=True)
        server.end_watches()
        await pass_time(lambda: len(server.asked("list")) == 2 and server.watching == 1)

    assert following.has("default/a")
    assert following.state.pod("default/a").node == ""
    reason = following.feed.kinds_health()[POD.name].reason
    assert reason.startswith("1 not understood: pod default/a: wanted")
    assert [log["object"] for log in logs if log["event"] == "object.rejected"] == ["default/a"]

    server.objects.replace(PODS_PATH, pod("a", "n9"))
    await clock.until(lambda: following.feed.kinds_health()[POD.name] == OK)
    assert following.state.pod("default/a").node == "n9"


async def test_a_deleted_object_that_was_not_understood_is_forgotten(
    server: ApiServer, following: Following, clock
) -> None:
    server.objects.replace(PODS_PATH, pod("a") | {"spec": 5})
    await clock.until(lambda: following.feed.kinds_health()[POD.name] != OK)
    server.objects.delete(PODS_PATH, "default/a")
    await clock.until(lambda: following.has())

    assert following.feed.kinds_health()[POD.name] == OK


@pytest.mark.parametrize(
    "bad",
    [
        b"no event\n",
        line("ADDED", {"metadata": {"name": "x"}}),
        line("NEW", {"metadata": {"resourceVersion": "7"}}),
    ],
)
async def test_a_line_that_is_no_event_begins_again(
    server: ApiServer, follow: Follow, clock, bad: bytes
) -> None:
    """With a list: what was missed is not known."""
    server.script(begin(bad, then_hang=True), watch=True)
    following = await follow()
    await clock.until(lambda: following.feed.kinds_health()[POD.name] != OK)
    await clock.advance(5)
    await clock.until(lambda: server.watching == 1)

    assert len(server.asked("list")) == 2
    assert following.feed.kinds_health()[POD.name] == OK


async def test_a_node_with_too_many_kinds_of_resources_is_named(
    server: ApiServer, follow: Follow, clock
) -> None:
    """Some of them are left out; the node counts."""
    amounts = {f"example.com/r{number}": "1" for number in range(200)}
    server.objects.create(NODES_PATH, node("a", allocatable=amounts))
    server.objects.create(NODES_PATH, node("b"))
    following = await follow(NODE)
    await following.feed.wait_synced()

    assert sorted(following.state.keys(NODE)) == ["a", "b"]
    health = following.feed.kinds_health()[NODE.name]
    assert health.status is HealthStatus.OK
    assert health.reason.startswith("1 not read in full: a: allocatable: example.com/r")


async def test_a_large_list_leaves_the_loop_to_others(
    server: ApiServer, follow: Follow, clock
) -> None:
    """Between two turns of the loop at most a slice of it is taken over."""
    items = [pod(f"p{number}", "n1") for number in range(5000)]
    body = json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}).encode()
    server.script(begin(body), path=PODS_PATH, watch=False)
    following = await follow()
    steps: list[int] = []
    while following.feed.health() != OK:
        steps.append(sum(1 for _ in following.state.keys(POD)))
        await asyncio.sleep(0)

    assert max(after - before for before, after in itertools.pairwise(steps)) <= 200


async def test_events_that_come_together_leave_the_loop_to_others(
    server: ApiServer, follow: Follow
) -> None:
    """Between two turns of the loop at most a slice of them is taken over."""
    pods = [pod(f"p{number}", "n1") for number in range(3000)]
    for version, each in enumerate(pods, 8):
        each["metadata"]["resourceVersion"] = str(version)
    stream = b"".join(line("ADDED", each) for each in pods)
    server.script(begin(stream), path=PODS_PATH, watch=True)
    following = await follow()
    steps = [0]
    while steps[-1] < len(pods):
        await asyncio.sleep(0)
        steps.append(sum(1 for _ in following.state.keys(POD)))

    assert max(after - before for before, after in itertools.pairwise(steps)) <= 200


async def test_catching_up_waits_for_the_watch(
    server: ApiServer, following: Following, clock
) -> None:
    """It says how far it has come; then nothing is listed again."""
    server.silent = True
    server.objects.create(PODS_PATH, pod("b"))
    caught_up = asyncio.ensure_future(following.feed.catch_up(POD))
    await clock.until(lambda: len(server.asked("list")) == 2)  # of one pod: which version is it?
    assert not caught_up.done()
    assert following.has("default/a")
    server.silent = False
    server.bookmark()
    await asyncio.wait_for(caught_up, 60)
    assert following.has("default/a", "default/b")
    assert [one.query["limit"] for one in server.asked("list")] == ["500", "1"]


@pytest.mark.parametrize("fails", [False, True])
async def test_catching_up_does_not_wait_for_a_watch_that_lags(
    server: ApiServer, following: Following, clock, pass_time, fails: bool
) -> None:
    """All is listed again, also if the server does not say how far it is itself."""
    server.silent = True
    server.objects.create(PODS_PATH, pod("b"))
    if fails:
        server.script(refuse(500), path=PODS_PATH, watch=False)
    caught_up = asyncio.ensure_future(following.feed.catch_up(POD))
    await pass_time(caught_up.done)
    assert following.has("default/a", "default/b")
    assert server.asked("list")[-1].query == {"limit": "500"}
    server.silent = False
    await clock.until(lambda: server.watching == 1)
    server.objects.create(PODS_PATH, pod("c"))
    await clock.until(lambda: following.has("default/a", "default/b", "default/c"))


async def test_catching_up_with_a_server_whose_versions_are_no_numbers(
    server: ApiServer, following: Following
) -> None:
    """They cannot be compared: all is listed again, once."""
    await _catch_up("newer", following)
    assert len(server.asked("list")) == 2


async def test_catching_up_ends_the_pause_after_an_error(
    server: ApiServer, following: Following, pass_time
) -> None:
    """A replica that has just got the lead does not sit out 30 s first: no time passes then."""
    server.script(refuse(500), path=PODS_PATH, watch=True)
    server.end_watches()
    await pass_time(lambda: following.feed.kinds_health()[POD.name].status is not HealthStatus.OK)
    server.objects.create(PODS_PATH, pod("b"))
    await _catch_up(str(server.objects.version), following)
    assert following.has("default/a", "default/b")


async def _catch_up(version: str, following: Following) -> None:
    """Without waiting for the watch."""
    protocol = following.feed._kinds[POD.name].protocol
    await asyncio.wait_for(protocol.catch_up(version, 0.0), 60)


async def test_what_is_declared_later_is_read_of_objects_that_are_known(
    server: ApiServer, follow: Follow, clock
) -> None:
    """As by a plugin of a changed configuration; what is not read any more costs no list."""
    seat = "example.com/seat"
    obj = pod("a")
    obj["metadata"]["annotations"] = {seat: "7"}
    server.objects.create(PODS_PATH, obj)
    following = await follow()
    await clock.until(lambda: server.watching == 1)
    found = following.state.pod("default/a")
    assert found is not None
    assert not found.annotations

    def lists() -> int:
        return sum(one.path == PODS_PATH and "watch" not in one.query for one in server.requests)

    before = lists()
    fields = KeptFields(pod_annotations={seat: 10})
    keeping = asyncio.ensure_future(following.feed.keep(fields))
    await clock.until(keeping.done)
    found = following.state.pod("default/a")
    assert found is not None
    assert found.annotations == ((seat, "7"),)
    assert lists() > before

    before = lists()
    await following.feed.keep(KeptFields())
    assert lists() == before
    assert following.feed.kept == KeptFields()


async def test_what_is_declared_before_the_first_list_has_come_is_in_it(
    server: ApiServer, follow: Follow, clock
) -> None:
    obj = pod("a")
    obj["metadata"]["annotations"] = {"seat": "7"}
    server.objects.create(PODS_PATH, obj)
    following = await follow()
    await following.feed.keep(KeptFields(pod_annotations={"seat": 10}))
    await clock.until(lambda: server.watching == 1)
    found = following.state.pod("default/a")
    assert found is not None
    assert found.annotations == (("seat", "7"),)
