"""Parts of plugins that are wrong, as a stranger writes them: the daemon around them goes on."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from structlog.testing import capture_logs

from koord.cluster.keptfields import reads
from koord.kube.client import Resource
from koord.util.errors import KoordError
from koord.util.health import OK, PartHealth
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_scheduler.framework.extension.providers import (
    APIServiceProvider,
    ControllerProvider,
    Endpoint,
    InformerFactoryProvider,
)
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import EnqueueExtensions, PreFilterPlugin
from koord_scheduler.framework.status import Status
from koord_scheduler.framework.types import Action, ClusterEvent, HintedEvent, QueueingHint
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import refuse
from tests.support.scheduler import replicas as schedulers
from tests.support.scheduler.replicas import PODS, Fit, Replica, Start, pending, placed

PassTime = Callable[..., Any]
NAME = "NodeResourcesFit"  # that the replicas of these tests know the plugin by


class Part:
    """A part as it should be."""

    async def run(self, stop: Stop) -> None:
        await stop.wait()

    async def wait_ready(self) -> None:
        """At once."""

    async def wait_synced(self) -> None:
        """At once."""

    def health(self) -> PartHealth:
        return OK


class WithoutWaitReady:
    run, health = Part.run, Part.health


class NeverReady(Part):
    async def wait_ready(self) -> None:
        await asyncio.Event().wait()

    wait_synced = wait_ready


class RaisesWhenAsked(Part):
    async def wait_ready(self) -> None:
        raise KeyError("gone")

    wait_synced = wait_ready


class ReadyLater(Part):
    """At the third question."""

    def __init__(self) -> None:
        self.asked = 0

    async def wait_ready(self) -> None:
        self.asked += 1
        if self.asked < 3:
            raise OSError("not yet")


class SyncRun(Part):
    def run(self, stop: Stop) -> None:  # type: ignore[override]
        """It has forgotten async."""


class HealthOfAnotherType(Part):
    def health(self) -> PartHealth:
        return "fine"  # type: ignore[return-value]


def sharing(part: type) -> type[Fit]:
    """A plugin with such a shared part."""

    class Shares(Fit):
        def __init__(self, args: Any, handle: Handle) -> None:
            handle.services.shared.get("jobs", part)

    return Shares


def hooking(hook: Any) -> type[Fit]:
    """A plugin with such a start-up hook."""

    class Hooks(Fit):
        def __init__(self, args: Any, handle: Handle) -> None:
            handle.services.hooks.add(NAME, hook)

    return Hooks


def answering(endpoints: Any) -> type[Fit]:
    class Answers(Fit, APIServiceProvider):
        def endpoints(self) -> Any:
            return endpoints()

    return Answers


def informing(informers: Any) -> type[Fit]:
    class Informs(Fit, InformerFactoryProvider):
        def new_informers(self) -> Any:
            return informers()

    return Informs


def controlling(controllers: Any) -> type[Fit]:
    class Controls(Fit, ControllerProvider):
        def new_controllers(self) -> Any:
            return controllers()

    return Controls


class FollowsMissing(Fit):
    """Follows a kind whose CRD is not there."""

    def __init__(self, args: Any, handle: Handle) -> None:
        handle.services.informers.informer(Resource("example.com/v1", "licences"))


async def hangs() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise KeyError("gone")


async def answer(request: object) -> object:
    return None


def raises() -> None:
    raise KeyError("gone")


REFUSED = {
    "part without wait_ready": (
        sharing(WithoutWaitReady),
        'shared part "jobs" of plugin NodeResourcesFit: wanted async def wait_ready(self), '
        "found none",
    ),
    "part with a sync run": (
        sharing(SyncRun),
        "wanted async def run(self, stop), found a plain function; write async def",
    ),
    "hook that is sync": (hooking(lambda: None), "wanted a start-up hook that is async def"),
    "hook that raises": (
        hooking(fails),
        "plugin NodeResourcesFit: its start-up hook failed: KeyError('gone')",
    ),
    "endpoints that are none": (
        answering(lambda: None),
        "plugin NodeResourcesFit: endpoints(): wanted Endpoints, found None",
    ),
    "endpoints as a text": (answering(lambda: "/x"), "wanted Endpoints, found '/x'"),
    "endpoints of tuples": (
        answering(lambda: [("GET", "/x", answer)]),
        "wanted an Endpoint with GET|PUT|POST|DELETE and an async function, found ('GET'",
    ),
    "endpoints twice": (
        answering(lambda: [Endpoint("GET", "/x", answer)] * 2),
        "GET /x is there twice",
    ),
    "endpoints that raise": (answering(raises), "endpoints(): KeyError('gone')"),
    "informers in a list": (
        informing(lambda: [Part()]),
        "plugin NodeResourcesFit: new_informers(): wanted a mapping by name, found [",
    ),
    "informers that raise": (informing(raises), "new_informers(): KeyError('gone')"),
    "informer of the wrong type": (
        informing(lambda: {"licences": object()}),
        "new_informers(): licences: wanted async def run(self, stop), found none",
    ),
    "controllers in a list": (
        controlling(lambda: [Part()]),
        "new_controllers(): wanted a mapping by name, found [",
    ),
    "controller without wait_ready": (
        controlling(lambda: {"jobs": WithoutWaitReady()}),
        "new_controllers(): jobs: wanted async def wait_ready(self), found none",
    ),
}


@pytest.fixture
def start_with(start: Start, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Replica]:
    """Start a replica, by default one with ALONE's profile, whose NodeResourcesFit is a plugin."""

    def start_with(
        plugin: type[Fit], config: Any = schedulers.ALONE, *args: str, **options: Any
    ) -> Replica:
        monkeypatch.setattr(schedulers, "Fit", plugin)
        return start(config, *args, **options)

    return start_with


@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_used_refuses_the_start_in_one_line(
    case: str,
    start_with: Callable[..., Replica],
    clock: SimulatedClock,
    pass_time: PassTime,
) -> None:
    """That names the plugin; there is no group of errors around it."""
    plugin, text = REFUSED[case]
    replica = start_with(plugin, schedulers.SIMPLE, "--controller-plugins=*")
    await pass_time(replica.task.done, step=0.2)

    error = replica.task.exception()
    assert isinstance(error, KoordError)
    assert text in str(error)
    assert NAME in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("plugin", "part", "text"),
    [
        (sharing(NeverReady), "plugin parts", 'its part "jobs" is not ready after'),
        (sharing(RaisesWhenAsked), "plugin parts", "KeyError('gone')"),
        (
            informing(lambda: {"own": NeverReady()}),
            "plugins' informers",
            'its informer "own" is not ready after',
        ),
        (informing(lambda: {"own": RaisesWhenAsked()}), "plugins' informers", "KeyError('gone')"),
        (hooking(hangs), "start hooks", "its start-up hook"),
        (FollowsMissing, "informers", "licences of plugin NodeResourcesFit"),
    ],
    ids=["part", "part that raises", "informer", "informer that raises", "hook", "CRD"],
)
async def test_who_is_never_ready_holds_the_others_up_for_a_while(
    plugin: type[Fit],
    part: str,
    text: str,
    start_with: Callable[..., Replica],
    server: ApiServer,
    clock: SimulatedClock,
    let_pass: PassTime,
    pass_time: PassTime,
) -> None:
    """/readyz is 503 and names the plugin; then pods are bound, and it says who is left behind."""
    server.script(*[refuse(404)] * 1000, path="/apis/example.com/v1/licences")
    server.objects.create(PODS, pending("web"))
    with capture_logs():
        replica = start_with(plugin)
        await pass_time(lambda: server.watching, step=0.2)
        for _ in range(20):
            await clock.advance(1)
            status, body = await replica.get("/readyz?format=json")
            if text in body.replace('\\"', '"'):
                break

        assert (status, "web" in placed(server)) == (503, False)
        assert f"plugin {NAME}" in body
        assert part in body

        await pass_time(lambda: "web" in placed(server), step=2)
        await let_pass(2)

    status, body = await replica.get("/readyz?format=json")
    assert (status, '"degraded"' in body) == (200, True)
    assert f"plugin {NAME}" in body


async def test_who_is_ready_in_the_end_is_waited_for(
    start_with: Callable[..., Replica],
    server: ApiServer,
    clock: SimulatedClock,
    pass_time: PassTime,
) -> None:
    """A part that raises is asked again, and then nothing is left of it in /readyz."""
    server.objects.create(PODS, pending("web"))
    replica = start_with(sharing(ReadyLater))
    await pass_time(lambda: "web" in placed(server), step=0.5)
    assert await replica.get("/readyz") == (200, "ok")


SEAT = "example.com/seat"


@reads(pod_annotations={SEAT: 1000})
class Reads(Fit, PreFilterPlugin):
    """Wants a seat of 1,000 characters."""

    def pre_filter(self, state: Any, pod: Any, nodes: Any) -> Status | None:
        found = dict(pod.annotations).get(SEAT, "")
        return None if len(found) == 1000 else Status.unresolvable("no seat")


async def test_what_a_plugin_declares_to_read_comes_whole_or_not_at_all(
    start_with: Callable[..., Replica], server: ApiServer, pass_time: PassTime
) -> None:
    """A value beyond its bound is named in an event on the pod, which fits no node."""
    for name, size in (("whole", 1000), ("long", 1001)):
        pod = pending(name)
        pod["metadata"]["annotations"] = {SEAT: "x" * size, "other": "y"}
        server.objects.create(PODS, pod)
    replica = start_with(Reads)
    await pass_time(lambda: "whole" in placed(server), step=0.5)
    text = f"annotation {SEAT}: 1001 bytes of at most 1000"
    await pass_time(lambda: any(text in repr(one) for one in server.requests), step=0.5)
    assert "long" not in placed(server)
    _, body = await replica.get("/healthz?verbose")
    assert text in body


LICENCES = "/apis/example.com/v1/licences"


class Follows(Fit, PreFilterPlugin, EnqueueExtensions):
    """Rejects pods while there is no licence, and has them tried again when there is one."""

    def __init__(self, args: Any, handle: Handle) -> None:
        resource = Resource("example.com/v1", "licences")
        self.licences = handle.services.custom_resources.follow(
            resource, lambda found: str(found["metadata"]["name"]), without="nothing is placed"
        )

    def pre_filter(self, state: Any, pod: Any, nodes: Any) -> Status | None:
        return None if self.licences.objects else Status.unschedulable("no licence")

    def events_to_register(self) -> Iterable[HintedEvent]:
        event = ClusterEvent("licences.v1.example.com", Action.ADD)
        return (HintedEvent(event, lambda pod, old, new: HINTS[new == "gold"]),)


HINTS = {True: QueueingHint.QUEUE, False: QueueingHint.SKIP}


async def test_a_kind_of_a_plugins_own_is_listed_before_the_first_pod_is_tried(
    start_with: Callable[..., Replica], server: ApiServer, pass_time: PassTime
) -> None:
    """And what comes later has pods tried again by the hint of the plugin, which has decoded it."""
    server.objects.create(PODS, pending("web"))
    server.objects.create(LICENCES, {"metadata": {"name": "gold"}})
    replica = start_with(Follows)
    await pass_time(lambda: "web" in placed(server), step=0.5)
    attempts = [one for one in server.requests if one.path.endswith("/binding")]
    assert len(attempts) == 1
    status, body = await replica.get("/readyz?format=json")
    assert (status, "degraded" in body) == (200, False)


async def test_a_missing_kind_degrades_names_the_plugin_and_is_asked_for_again(
    start_with: Callable[..., Replica],
    server: ApiServer,
    let_pass: PassTime,
    pass_time: PassTime,
) -> None:
    """The start does not wait for it; logged once; once it is there, pods are tried again."""
    server.script(*[refuse(404)] * 2, path=LICENCES)
    server.objects.create(PODS, pending("web"))
    with capture_logs() as logs:
        replica = start_with(Follows)
        await pass_time(lambda: server.watching, step=0.2)
        await let_pass(5)
        _, body = await replica.get("/healthz?format=json")
        text = body.replace('\\"', '"')
        assert "licences.v1.example.com of plugin NodeResourcesFit: " in text
        assert "install its CRD: nothing is placed" in text
        assert "web" not in placed(server)

        server.objects.create(LICENCES, {"metadata": {"name": "gold"}})
        await pass_time(lambda: "web" in placed(server), step=2)
    failed = [
        one for one in logs if one["event"] == "watch.failed" and one["watched"] == "licences"
    ]
    assert len(failed) == 1
    assert f"plugin {NAME} follows it" in failed[0]["error"]


class FollowsIfThere(Fit):
    """Follows a kind that a cluster need not have."""

    def __init__(self, args: Any, handle: Handle) -> None:
        handle.services.custom_resources.follow(
            Resource("example.com/v1", "licences"), dict, optional=True
        )


async def test_a_cluster_without_an_optional_kind_is_whole(
    start_with: Callable[..., Replica],
    server: ApiServer,
    let_pass: PassTime,
    pass_time: PassTime,
) -> None:
    server.script(*[refuse(404)] * 1000, path=LICENCES)
    server.objects.create(PODS, pending("web"))
    with capture_logs() as logs:
        replica = start_with(FollowsIfThere)
        await pass_time(lambda: "web" in placed(server), step=0.2)
        await let_pass(5)
    assert any(one.path.startswith(LICENCES) for one in server.requests)
    status, body = await replica.get("/readyz?format=json")
    assert (status, "degraded" in body) == (200, False)
    assert not [one for one in logs if one.get("watched") == "licences"]


async def test_a_health_of_another_type_is_a_finding(
    start_with: Callable[..., Replica],
    server: ApiServer,
    pass_time: PassTime,
) -> None:
    """/healthz answers, and says which."""
    server.objects.create(PODS, pending("web"))
    replica = start_with(sharing(HealthOfAnotherType))
    await pass_time(lambda: "web" in placed(server), step=0.5)
    assert "wanted a PartHealth, found 'fine'" in str((await replica.healthz())["jobs"])
