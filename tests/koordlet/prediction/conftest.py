"""Times, pods and models that several tests of prediction use."""

from datetime import datetime

import pytest

from koord.api.pod import Container, Pod
from koord.api.qos import KubeQoS
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import Cadence, RetentionClass
from koordlet.plugin.testing.scripted import SimulatedClock

HOUR = 3600.0
MIB, GIB = 1 << 20, 1 << 30


def unix(text):
    """Unix seconds of a time in RFC 3339."""
    return datetime.fromisoformat(text).timestamp()


def make_pod(uid, cpu="1", memory="1Gi", **fields):
    container = Container(name="main", requests={"cpu": cpu, "memory": memory})
    fields = {"phase": "Running", "start_time": 0.0, "qos": KubeQoS.BURSTABLE} | fields
    return Pod(namespace="default", name=uid, uid=uid, containers=(container,), **fields)


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
