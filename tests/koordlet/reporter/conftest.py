"""A metric cache in memory and the few ways in which tests fill it."""

import pytest

from koord.api.pod import Pod
from koord.api.qos import KubeQoS
from koord.util.clock import stamp
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import (
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    SYS_CPU_USAGE,
    SYS_MEMORY_USAGE,
    Cadence,
    RetentionClass,
    Sample,
)
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.statesinformer.podmeta import PodMeta

GIB = 1 << 30
NODE = (Sample(NODE_CPU_USAGE, 3.0), Sample(NODE_MEMORY_USAGE, 3 * GIB))
SYSTEM = (Sample(SYS_CPU_USAGE, 0.4), Sample(SYS_MEMORY_USAGE, GIB / 2))


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
        retentions={RetentionClass.NODE: 1800.0, RetentionClass.POD: 300.0},
    )


@pytest.fixture
def measure(cache, clock):
    """Append the samples now and after each further second until so many seconds have passed."""

    def measure(*samples, seconds=0):
        cache.append(stamp(clock), samples)
        for _ in range(seconds):
            clock.tick(1)
            cache.append(stamp(clock), samples)

    return measure


def make_pod(name="web-0", namespace="default", *, qos=KubeQoS.BURSTABLE, **fields):
    pod = Pod(namespace=namespace, name=name, uid=f"uid-{name}", qos=qos, **fields)
    return PodMeta(
        pod=pod, cgroup=f"kubepods/{name}", containers=(), qos=pod.qos_class, kube_qos=qos
    )
