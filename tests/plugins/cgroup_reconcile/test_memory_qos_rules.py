"""Memory QoS: whose settings hold, and the amounts that follow from requests and limits."""

import mmap

import pytest

from koord.api.nodeslo import merge_nodeslo
from koord.api.pod import Container, Pod
from koord.api.qos import KubeQoS
from koord.api.qosstrategy import MemoryQoS
from koord.plugin import KoordError
from koordlet.plugin import resources
from koordlet.plugin.testing import make_pod
from koordlet_plugins.cgroup_reconcile import (
    ANNOTATION,
    NO_LIMIT,
    Effective,
    guaranteed,
    memory_name,
    merged,
    of_pod,
    own_memory_qos,
    page_cache_limit,
    request_and_limit,
    requested,
    settings_of_directory,
    throttled_from,
)

MI, GI = 2**20, 2**30
page = pytest.mark.skipif(mmap.PAGESIZE != 4096, reason="examples of 4096-byte pages")


def node(**classes):
    slo, problems = merge_nodeslo({"spec": {"resourceQOSStrategy": classes}})
    assert not problems
    return slo.resource_qos


def wmark(values):
    return values.wmark_ratio, values.wmark_scale_permill, values.wmark_min_adj


ON = node(beClass={"memoryQOS": {"enable": True}})
OFF = node()


@pytest.mark.parametrize(
    ("settings", "annotation", "enable", "wmarks", "throttling", "given"),
    [
        (ON, None, True, (95, 20, 50), 0, None),
        (ON, '{"policy":"none"}', False, (0, 50, 0), 0, set()),
        (ON, '{"policy":"none","wmarkRatio":80}', False, (0, 50, 0), 0, set()),
        (OFF, '{"policy":"auto"}', True, (95, 20, 50), 0, None),
        (ON, '{"policy":"auto","throttlingPercent":90}', True, (95, 20, 50), 90, None),
        (OFF, '{"policy":"auto","throttlingPercent":90}', True, (95, 20, 50), 90, None),
        (ON, '{"wmarkRatio":80}', True, (80, 20, 50), 0, None),
        (OFF, '{"wmarkRatio":80}', False, (80, 50, 0), 0, {"wmarkRatio"}),
        (OFF, '{"policy":"default"}', False, (0, 50, 0), 0, set()),
        (OFF, None, False, (0, 50, 0), 0, set()),
        (ON, "null", True, (95, 20, 50), 0, None),
    ],
)
def test_whose_settings_hold(settings, annotation, enable, wmarks, throttling, given):
    """The pod's fields come before its policy, the policy before the node.

    Where the class is off only what the pod itself says counts.
    """
    annotations = {} if annotation is None else {ANNOTATION: annotation}
    pod = make_pod("batch", qos=KubeQoS.BEST_EFFORT, annotations=annotations).pod

    found = merged(own_memory_qos(pod), settings, pod.qos_class)

    assert (found.values.enable, wmark(found.values)) == (enable, wmarks)
    assert found.values.throttling_percent == throttling
    assert found.given == (None if given is None else frozenset(given))


@pytest.mark.parametrize(
    "text",
    ['{"policy":', "[]", '{"wmarkRatio":"80"}', '{"wmarkRatio":101}', '{"wmarkMinAdj":-26}'],
)
def test_a_wrong_annotation_is_refused_whole(text):
    """Half of what was meant is not what was meant."""
    pod = make_pod("web", annotations={ANNOTATION: text}).pod
    with pytest.raises(KoordError, match="default/web"):
        own_memory_qos(pod)


@pytest.mark.parametrize(
    ("label", "kube", "low"),
    [
        ("LSE", KubeQoS.GUARANTEED, 1),
        ("LSR", KubeQoS.GUARANTEED, 1),
        ("LS", KubeQoS.BURSTABLE, 2),
        ("BE", KubeQoS.BEST_EFFORT, 3),
        ("SYSTEM", KubeQoS.BURSTABLE, 4),
        ("", KubeQoS.GUARANTEED, 1),
        ("", KubeQoS.BURSTABLE, 2),
        ("", KubeQoS.BEST_EFFORT, 3),
    ],
)
def test_classes_of_pods(label, kube, low):
    """The label, or what stands for the Kubernetes class; directories go by the latter."""
    classes = ("lsrClass", "lsClass", "beClass", "systemClass")
    strategy = node(
        **{
            name: {"memoryQOS": {"enable": True, "lowLimitPercent": percent}}
            for percent, name in enumerate(classes, 1)
        }
    )
    pod = make_pod("web", qos=kube, labels={"koordinator.sh/qosClass": label}).pod

    assert merged(own_memory_qos(pod), strategy, pod.qos_class).values.low_limit_percent == low
    directories = [settings_of_directory(strategy, qos).values.low_limit_percent for qos in KubeQoS]
    assert directories == [1, 2, 3]


@page
@pytest.mark.parametrize(
    ("request_", "limit", "node_", "percents", "expected"),
    [
        (GI, 2 * GI, 0, (50, 80, 80), (536_870_912, 858_993_459, 1_932_734_464)),
        (512 * MI, GI, 0, (50, 80, 80), (268_435_456, 429_496_729, 966_365_184)),
        (2 * GI, 4 * GI, 0, (0, 0, 0), (0, 0, NO_LIMIT)),
        (2 * GI, 4 * GI, 0, (80, 50, 90), (1_717_986_918, 1_717_986_918, 4_080_218_112)),
        (0, NO_LIMIT, 64 * GI, (100, 0, 80), (0, 0, 54_975_578_112)),
        (0, NO_LIMIT, GI, (50, 0, 40), (0, 0, 429_494_272)),
        (10**9, 10**9, 0, (100, 50, 80), (10**9, 10**9, 10**9)),
        (GI, GI, 0, (100, 0, 40), (GI, 0, GI)),
    ],
)
def test_amounts_of_a_container(request_, limit, node_, percents, expected):
    """Percent of the request, and from the request on percent of the way to the limit."""
    least, low, throttling = percents
    settings = MemoryQoS(
        min_limit_percent=least, low_limit_percent=low, throttling_percent=throttling
    )
    high = throttled_from(request_, limit, node_, settings)
    assert (*guaranteed(request_, settings), high) == expected


def test_amounts_of_a_pod():
    """Of its containers' requests together."""
    pod = make_pod(
        "web",
        containers=(
            Container("a", {"memory": "1Gi"}, {"memory": "2Gi"}),
            Container("b", {"memory": "512Mi"}, {"memory": "1Gi"}),
        ),
    ).pod
    settings = MemoryQoS(min_limit_percent=50, low_limit_percent=80)
    assert guaranteed(requested(pod), settings) == (805_306_368, 1_288_490_188)


def test_best_effort_pods_ask_for_batch_memory():
    """By their label: an unlabelled pod asks for memory, whatever its class."""
    asks = Container(
        "a",
        {"kubernetes.io/batch-memory": "1Gi", "memory": "1"},
        {"kubernetes.io/batch-memory": "2Gi"},
    )
    batch = make_pod(
        "batch",
        qos=KubeQoS.BEST_EFFORT,
        labels={"koordinator.sh/qosClass": "BE"},
        containers=(asks, Container("b")),
    ).pod
    plain = make_pod("plain", qos=KubeQoS.BEST_EFFORT, containers=(asks,)).pod

    assert (requested(batch), requested(plain)) == (GI, 1)
    assert request_and_limit(asks, memory_name(batch)) == (GI, 2 * GI)
    assert request_and_limit(asks, memory_name(plain)) == (1, NO_LIMIT)


def limited(memory, *, best_effort=False, sidecar=False):
    name = "kubernetes.io/batch-memory" if best_effort else "memory"
    policy = "Always" if sidecar else ""
    return Container("c", limits={name: memory} if memory else {}, restart_policy=policy)


@pytest.mark.parametrize("best_effort", [False, True])
@pytest.mark.parametrize(
    ("containers", "init", "overhead", "half"),
    [
        (("1Gi",), (), None, 512 * MI),
        (("1Gi", "1Gi"), (), None, GI),
        (("1Gi", None), (), None, None),
        (("1Gi",), (("1Gi", True),), None, GI),
        (("1Gi",), ((None, True),), None, None),
        (("1Gi",), (("4Gi", False),), None, 2 * GI),
        (("1Gi",), (("1Gi", True), ("4Gi", False)), None, 5 * GI // 2),
        (("1Gi",), (), "1Gi", GI),
    ],
)
def test_half_of_a_pods_limit_as_page_cache(best_effort, containers, init, overhead, half):
    """The pod's limit is Kubernetes': one container that has none leaves the pod without."""
    name = "kubernetes.io/batch-memory" if best_effort else "memory"
    pod = Pod(
        "n",
        "web",
        "u",
        labels={"koordinator.sh/qosClass": "BE"} if best_effort else {},
        containers=tuple(limited(each, best_effort=best_effort) for each in containers),
        init_containers=tuple(
            limited(each, best_effort=best_effort, sidecar=sidecar) for each, sidecar in init
        ),
        overhead={name: overhead} if overhead else {},
    )
    settings = Effective(
        MemoryQoS(page_cache_limit_percent=50), frozenset({"pageCacheLimitPercent"})
    )

    claimed = {grant.resource: grant.value for grant in of_pod(pod, settings)}

    assert claimed.get(resources.MEMORY_PAGECACHE_LIMIT_SIZE) == half


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (MemoryQoS(page_cache_limit_size=512 * MI), (1, 512 * MI, 0)),
        (MemoryQoS(page_cache_limit_size=2 * GI), (1, GI, 0)),
        (MemoryQoS(page_cache_limit_size=0), (0, 0, None)),
        (MemoryQoS(), (None, None, None)),
        (MemoryQoS(page_cache_limit_size=512 * MI, page_cache_enable=False), (0, 512 * MI, 0)),
        (MemoryQoS(page_cache_enable=True), (1, None, None)),
        (MemoryQoS(page_cache_limit_percent=50), (1, 512 * MI, 0)),
        (
            MemoryQoS(page_cache_limit_percent=50, page_cache_limit_size=256 * MI),
            (1, 256 * MI, 0),
        ),
        (
            MemoryQoS(page_cache_limit_size=512 * MI, page_cache_reclaim_sync=True),
            (1, 512 * MI, 1),
        ),
    ],
)
def test_page_cache_of_a_pod_of_1_gib(settings, expected):
    """Enable, size in bytes and synchronous reclaim; None is not written."""
    assert page_cache_limit(settings, GI) == expected


def test_percent_of_no_limit_is_no_page_cache_limit():
    """There is nothing to take a share of."""
    assert page_cache_limit(MemoryQoS(page_cache_limit_percent=50), NO_LIMIT) == (None, None, None)
