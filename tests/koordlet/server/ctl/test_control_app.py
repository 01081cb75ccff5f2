"""Answers to koordletctl over the control socket."""

import pytest
from aiohttp.test_utils import TestClient, TestServer

from koord.api.node import Node
from koord.api.nodemetric import time_text
from koord.api.pod import Pod
from koord.api.qos import KubeQoS
from koord.util.clock import stamp
from koord.util.errors import KoordError, OptionError, Unavailable
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import (
    CONTAINER_CPU_USAGE,
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    NODE_NETWORK_RECEIVE,
    NODE_NETWORK_TRANSMIT,
    NODE_PSI,
    POD_CPU_THROTTLED,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    POD_NETWORK_RECEIVE,
    POD_NETWORK_TRANSMIT,
    POD_PSI,
    QOS_CPU_USAGE,
    QOS_MEMORY_USAGE,
    QOS_PSI,
    Cadence,
    RetentionClass,
    Sample,
)
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.server.control_app import CtlSources, create_ctl_app
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podmeta import ContainerMeta, PodMeta

ABSENT = {
    "cpu_pressure": None,
    "memory_pressure": None,
    "io_pressure": None,
    "throttled_ratio": None,
    "receive_bytes_per_second": None,
    "transmit_bytes_per_second": None,
}


def make_pod(namespace, name, qos=KubeQoS.BURSTABLE, **fields):
    pod = Pod(namespace, name, f"uid-{namespace}-{name}", qos=qos, **fields)
    parent = "kubepods/besteffort" if qos is KubeQoS.BEST_EFFORT else "kubepods"
    container = ContainerMeta("app", f"containerd://{name}", f"{parent}/{name}/app")
    return PodMeta(pod, f"{parent}/{name}", (container,), pod.qos_class, qos)


WEB, DB = make_pod("default", "web"), make_pod("default", "db")
OTHER_WEB = make_pod("test", "web", KubeQoS.BEST_EFFORT)
DONE = make_pod("default", "done", phase="Succeeded")


async def explain(pod):
    """Nothing was decided."""
    return lambda: {"decisions": [], "pod": pod}


class Switches:
    """Dry-run of one plugin."""

    on = False

    def describe(self):
        return {"on": self.on}

    async def switch(self, plugin, *, on):
        if plugin != "PressureWatch":
            raise OptionError("plugin", plugin, "no plugin of this name")
        self.on = on
        return self.describe()


class Audited:
    """An audit log that says what it was asked."""

    flushed = 0

    async def flush(self):
        self.flushed += 1

    def answer(self, query):
        return {"most": query.most, "pod": query.pod, "flushed": self.flushed}


async def lines(seconds):
    """A record of three lines, of a daemon that lets itself be recorded for a minute at most."""
    if seconds > 60:
        raise KoordError("a record is under way")
    for line in (b"first\n", f"{seconds:g}\n".encode(), b"last\n"):
        yield line


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
def cache(clock):
    return MetricCache(
        None,
        "boot",
        clock,
        intervals=dict.fromkeys(Cadence, 1.0),
        retentions=dict.fromkeys(RetentionClass, 300.0),
    )


@pytest.fixture
def states(clock):
    states = StatesInformer(clock)
    states.set_node(Node("worker"))
    states.set_pods((WEB, DB, OTHER_WEB, DONE))
    return states


@pytest.fixture
def quarantined():
    return {"PressureWatch"}


@pytest.fixture
def switches():
    return Switches()


@pytest.fixture
def limits():
    return {}


@pytest.fixture
async def client(cache, states, quarantined, switches, limits):
    def none_yet():
        raise Unavailable("no NodeMetric yet")

    async def doctor():
        return [{"name": "psi", "supported": True}]

    def release(plugin):
        was_in = plugin in quarantined
        quarantined.discard(plugin)
        return was_in

    sources = CtlSources(
        node="worker",
        cache=cache,
        states=states,
        cpu_limits=lambda: limits,
        status=lambda: {"version": "0.1.0"},
        plugins=lambda: [{"name": "PressureWatch", "state": "running"}],
        release=release,
        node_metric=none_yet,
        explain=explain,
        dry_run=switches,
        audit=Audited(),
        doctor=doctor,
        record=lines,
    )
    async with TestClient(TestServer(create_ctl_app(sources))) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/status", {"version": "0.1.0"}),
        ("/plugins", [{"name": "PressureWatch", "state": "running"}]),
        ("/doctor", [{"name": "psi", "supported": True}]),
        ("/explain", {"decisions": [], "pod": ""}),
        ("/audit?lines=7&pod=web", {"most": 7, "pod": "web", "flushed": 1}),
        ("/explain?pod=shop%2Fweb", {"decisions": [], "pod": "shop/web"}),
    ],
)
async def test_what_the_daemon_says_goes_through_as_json(client, path, answer):
    """The handlers add nothing."""
    assert await (await client.get(path)).json() == answer


async def test_dry_run_is_switched(client, switches):
    """On and off, of a plugin that there is; nothing else."""
    on = await client.post("/dry-run/PressureWatch/on")
    assert (on.status, await on.json()) == (200, {"on": True})
    assert await (await client.get("/dry-run")).json() == {"on": True}
    off = await client.post("/dry-run/PressureWatch/off")
    assert await off.json() == {"on": False}
    assert (await client.post("/dry-run/PressureWatch/maybe")).status == 404
    assert (await client.post("/dry-run/Nobody/on")).status == 400
    assert (await client.get("/dry-run/PressureWatch/on")).status == 405
    assert not switches.on


async def test_a_plugin_is_released_once(client, quarantined):
    """The second time says that there is nothing to release, and what the plugin does."""
    first = await client.post("/plugins/PressureWatch/release")
    second = await client.post("/plugins/PressureWatch/release")

    assert (first.status, await first.json()) == (200, {"released": "PressureWatch"})
    assert (second.status, await second.text()) == (
        400,
        "plugin: found 'PressureWatch'; it is not in quarantine, its state is running\n",
    )
    assert not quarantined


async def test_only_a_known_plugin_is_released_and_only_by_post(client, quarantined):
    """Looking never changes anything."""
    unknown = await client.post("/plugins/PressureWach/release")
    looking = await client.get("/plugins/PressureWatch/release")

    assert (unknown.status, looking.status) == (400, 405)
    assert "did you mean PressureWatch?" in await unknown.text()
    assert quarantined


async def test_no_node_metric_is_503(client):
    """With the reason in the text."""
    answer = await client.get("/nodemetric")

    assert (answer.status, await answer.text()) == (503, "no NodeMetric yet\n")


async def test_top_of_nothing_has_rows_without_figures(client):
    """What was not measured is null, never 0."""
    answer = await (await client.get("/top")).json()

    assert answer["measured"] is None
    assert answer["capacity"] == {"cpu_cores": None, "memory_bytes": None}
    nothing = {"cpu_cores": None, "memory_bytes": None, **ABSENT, "cpu_history": [None] * 12}
    assert answer["node"] == {"name": "worker", **nothing}
    assert answer["qos"] == []
    assert [row["name"] for row in answer["pods"]] == ["default/db", "default/web", "test/web"]
    assert answer["pods"][0] == {
        "name": "default/db",
        "uid": "uid-default-db",
        "qos": "LS",
        "cpu_limit_cores": None,
        **nothing,
    }


async def test_top_says_who_is_held_to_how_much(client, cache, clock, limits):
    """A QoS class, and the pods in it; the least of several limits counts."""
    limits |= {"kubepods/besteffort": 0.71, "kubepods": 3.0}
    samples = [Sample(QOS_CPU_USAGE, 0.5, (name,)) for name in ("besteffort", "burstable")]
    cache.append(stamp(clock), samples)

    answer = await (await client.get("/top")).json()

    assert [row["cpu_limit_cores"] for row in answer["qos"]] == [0.71, None]
    held = {row["name"]: row["cpu_limit_cores"] for row in answer["pods"]}
    assert held == {"default/db": 3.0, "default/web": 3.0, "test/web": 0.71}


async def test_top_says_of_how_much_and_when(client, cache, states, clock):
    """Capacity is the Node object's, the time that of the newest sample, not of the response."""
    states.set_node(Node("worker", capacity={"cpu": "7500m", "memory": "2Ki"}))
    cache.append(stamp(clock), [Sample(NODE_CPU_USAGE, 3.0)])
    measured = time_text(clock.wall())
    clock.tick(1)

    answer = await (await client.get("/top")).json()

    assert answer["capacity"] == {"cpu_cores": 7.5, "memory_bytes": 2048}
    assert answer["measured"] == measured


async def test_top_shows_the_latest_figures(client, cache, clock):
    """Of node, QoS classes and pods; interfaces that carry others' traffic are not added up."""
    uid = WEB.uid

    def psi(kind, *subject):
        for resource, value in (("cpu", 1.0), ("mem", 2.0), ("io", 3.0)):
            yield Sample(kind, value, (*subject, resource, "10", "some"))
            yield Sample(kind, 99.0, (*subject, resource, "10", "full"))

    traffic = [
        Sample(kind, value, (device,))
        for kind in (NODE_NETWORK_RECEIVE, NODE_NETWORK_TRANSMIT)
        for device, value in (("lo", 1.0), ("eth0", 10.0), ("eth1", 20.0), ("cni0", 40.0))
    ]
    cache.append(
        stamp(clock),
        [
            Sample(NODE_CPU_USAGE, 3.0),
            Sample(NODE_MEMORY_USAGE, 4096),
            *psi(NODE_PSI),
            *traffic,
            Sample(QOS_CPU_USAGE, 0.5, ("burstable",)),
            Sample(QOS_MEMORY_USAGE, 512, ("burstable",)),
            *psi(QOS_PSI, "burstable"),
            Sample(POD_CPU_USAGE, 0.25, (uid,)),
            Sample(POD_MEMORY_USAGE, 128, (uid,)),
            Sample(POD_CPU_THROTTLED, 0.5, (uid,)),
            *psi(POD_PSI, uid),
            *(Sample(POD_NETWORK_RECEIVE, 7.0, (pod.uid,)) for pod in (WEB, DB, OTHER_WEB)),
            Sample(POD_NETWORK_TRANSMIT, 8.0, (uid,)),
        ],
    )
    waiting = {"cpu_pressure": 1.0, "memory_pressure": 2.0, "io_pressure": 3.0}

    answer = await (await client.get("/top")).json()

    assert answer["node"] == {
        "name": "worker",
        "cpu_cores": 3.0,
        "memory_bytes": 4096,
        **waiting,
        "throttled_ratio": None,
        "receive_bytes_per_second": 30.0,
        "transmit_bytes_per_second": 30.0,
        "cpu_history": [*[None] * 11, 3.0],
    }
    assert answer["qos"] == [
        {
            "name": "burstable",
            "cpu_limit_cores": None,
            "cpu_cores": 0.5,
            "memory_bytes": 512,
            **waiting,
            "throttled_ratio": None,
            "receive_bytes_per_second": 14.0,
            "transmit_bytes_per_second": 8.0,
            "cpu_history": [*[None] * 11, 0.5],
        }
    ]
    assert answer["pods"][1] == {
        "name": "default/web",
        "uid": uid,
        "qos": "LS",
        "cpu_limit_cores": None,
        "cpu_cores": 0.25,
        "memory_bytes": 128,
        **waiting,
        "throttled_ratio": 0.5,
        "receive_bytes_per_second": 7.0,
        "transmit_bytes_per_second": 8.0,
        "cpu_history": [*[None] * 11, 0.25],
    }


async def test_metrics_of_a_kind(client, cache, clock):
    """Aggregates of the window, per series, with the properties of the series."""
    for value in range(120):
        cache.append(stamp(clock), [Sample(POD_CPU_USAGE, value, (WEB.uid,))])
        clock.tick(1)

    answer = await (await client.get("/metrics/pod_cpu_usage?window=100s")).json()

    (series,) = answer.pop("series")
    assert answer == {"name": "pod_cpu_usage", "unit": "cores", "window_seconds": 100}
    assert (series["pod"], series["pod_uid"]) == ("default/web", WEB.uid)
    assert (series["last"], series["count"], series["span_seconds"]) == (119, 100, 99)
    assert (series["p50"], series["p99"]) == (69, 118)


@pytest.mark.parametrize("pod", ["default/web", "uid-default-web"])
async def test_metrics_of_one_pod_and_its_containers(client, cache, clock, pod):
    """Whether the kind knows the pod or only the container."""
    cache.append(
        stamp(clock),
        [
            Sample(POD_CPU_USAGE, 1, (WEB.uid,)),
            Sample(POD_CPU_USAGE, 2, (DB.uid,)),
            Sample(CONTAINER_CPU_USAGE, 3, ("containerd://web",)),
            Sample(CONTAINER_CPU_USAGE, 4, ("containerd://db",)),
            Sample(NODE_CPU_USAGE, 5),
        ],
    )

    found = {}
    for kind in ("pod_cpu_usage", "container_cpu_usage", "node_cpu_usage"):
        answer = await (await client.get(f"/metrics/{kind}", params={"pod": pod})).json()
        found[kind] = [series["last"] for series in answer["series"]]

    assert found == {"pod_cpu_usage": [1], "container_cpu_usage": [3], "node_cpu_usage": []}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("/metrics/node_cpu", "did you mean node_cpu_usage?"),
        ("/metrics/pod_cpu_usage?window=5", "use a duration above 0"),
        ("/metrics/pod_cpu_usage?window=-1m", "use a duration above 0"),
        ("/metrics/pod_cpu_usage?pod=web", "use one of default/web, test/web"),
        ("/metrics/pod_cpu_usage?pod=dp", "did you mean default/db?"),
    ],
)
async def test_a_mistyped_question_names_what_was_meant(client, query, message):
    """As 400 with one line."""
    answer = await client.get(query)

    assert answer.status == 400
    assert message in await answer.text()


async def test_an_unambiguous_name_is_enough(client):
    """The namespace is needed only where two pods share a name."""
    assert (await client.get("/metrics/pod_cpu_usage?pod=db")).status == 200


async def test_windows_are_at_most_an_hour(client):
    """As everywhere."""
    answer = await (await client.get("/metrics/node_cpu_usage?window=24h")).json()

    assert answer["window_seconds"] == 3600


async def test_a_record_is_streamed(client):
    """Line by line, for the duration that was asked for; what keeps it from beginning is a 400."""
    streamed = await client.get("/record?duration=5s")
    refused = await client.get("/record?duration=2m")

    assert (streamed.status, await streamed.text()) == (200, "first\n5\nlast\n")
    assert (refused.status, await refused.text()) == (400, "a record is under way\n")
