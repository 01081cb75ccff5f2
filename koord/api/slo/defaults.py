"""The sections of a NodeSLO merged with Koordinator's defaults.

Source: Koordinator, pkg/util/sloconfig and pkg/koordlet/statesinformer.
"""

import dataclasses
from typing import TypeVar

from koord.api.decoding.jsonrules import Struct
from koord.api.decoding.wire import shape_of
from koord.api.slo.resourceqos import CPUQoS, MemoryQoS, QoSClassStrategy, ResctrlQoS, ResourceQoS
from koord.api.slo.strategies import CPUBurst, ResourceThreshold, SystemStrategy
from koord.api.slo.thresholdorder import check_order

T = TypeVar("T")

THRESHOLD = shape_of(ResourceThreshold)
RESOURCE_QOS = shape_of(ResourceQoS)
CPU_BURST = shape_of(CPUBurst)
SYSTEM = shape_of(SystemStrategy)

_LATENCY_SENSITIVE = QoSClassStrategy(
    cpu=CPUQoS(group_identity=2, core_expeller=True),
    memory=MemoryQoS(wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=-25),
)
_BEST_EFFORT = QoSClassStrategy(
    cpu=CPUQoS(group_identity=-1),
    memory=MemoryQoS(wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=50),
    resctrl=ResctrlQoS(cat_range_end_percent=30),
)
# What an enabled block of a class holds, unless the NodeSLO says otherwise.
RECOMMENDED = ResourceQoS(lsr=_LATENCY_SENSITIVE, ls=_LATENCY_SENSITIVE, be=_BEST_EFFORT)


def effective_threshold(received: object, where: str) -> ResourceThreshold:
    """Return the strategy merged with its defaults. None: not received, all defaults.

    Raises:
        InvalidObject: a field has the wrong type or a value that the CRD forbids (so do the other
            functions here), or of two thresholds the lower one is above the other.
    """
    merged = _merged(THRESHOLD, ResourceThreshold(), received, where)
    check_order(THRESHOLD.dump(merged), where)
    return merged


def effective_cpu_burst(received: object, where: str) -> CPUBurst:
    return _merged(CPU_BURST, CPUBurst(), received, where)


def effective_system(received: object, where: str) -> SystemStrategy:
    return _merged(SYSTEM, SystemStrategy(), received, where)


def effective_resource_qos(received: object, where: str) -> ResourceQoS:
    """Return the settings by class; blocks that are not enabled hold the values for "off".

    The system class and the root cgroup keep what they have even in a block that is not enabled.
    """
    merged = _merged(RESOURCE_QOS, RECOMMENDED, received, where)
    return dataclasses.replace(
        merged,
        lsr=_without_disabled(merged.lsr),
        ls=_without_disabled(merged.ls),
        be=_without_disabled(merged.be),
    )


def _merged(shape: Struct[T], default: T, received: object, where: str) -> T:
    if received is None:
        return default
    read = shape.read(received, where)
    shape.check(read, where)
    return shape.load(shape.overlay(shape.dump(default), read))


def _without_disabled(settings: QoSClassStrategy) -> QoSClassStrategy:
    return dataclasses.replace(
        settings,
        cpu=settings.cpu if settings.cpu.enable else CPUQoS(),
        memory=settings.memory if settings.memory.enable else MemoryQoS(),
        resctrl=settings.resctrl if settings.resctrl.enable else ResctrlQoS(),
    )
