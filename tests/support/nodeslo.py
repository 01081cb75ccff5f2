"""NodeSLO and slo-controller-config with every field, and what they are with one of them spoilt."""

from collections.abc import Iterator
from typing import Any

import yaml

FULL_SLO: dict[str, Any] = yaml.safe_load("""
resourceUsedThresholdWithBE:
  enable: true
  cpuSuppressThresholdPercent: 65
  cpuSuppressMinPercent: 5
  cpuSuppressPolicy: cpuset
  memoryEvictThresholdPercent: 80
  memoryEvictLowerPercent: 75
  memoryAllocatableEvictThresholdPercent: 110
  memoryAllocatableEvictLowerPercent: 100
  cpuEvictBESatisfactionUpperPercent: 90
  cpuEvictBESatisfactionLowerPercent: 60
  cpuEvictBEUsageThresholdPercent: 90
  cpuEvictTimeWindowSeconds: 60
  cpuEvictThresholdPercent: 85
  cpuEvictLowerPercent: 80
  cpuAllocatableEvictThresholdPercent: 110
  cpuAllocatableEvictLowerPercent: 100
  cpuEvictPolicy: evictByRealLimit
  evictEnabledPriorityThreshold: 5999
  allocatableEvictPriorityThreshold: 7999
resourceQOSStrategy:
  policies: {cpuPolicy: groupIdentity, netQOSPolicy: tc}
  lsrClass:
    cpuQOS: {enable: true, groupIdentity: 2, schedIdle: 0, coreExpeller: true}
    memoryQOS: {enable: true, minLimitPercent: 100, lowLimitPercent: 0, throttlingPercent: 0,
      wmarkRatio: 95, wmarkScalePermill: 20, wmarkMinAdj: -25, priorityEnable: 0, priority: 0,
      oomKillGroup: 0}
    resctrlQOS: {enable: true, catRangeStartPercent: 0, catRangeEndPercent: 100, mbaPercent: 100}
    blkioQOS: {enable: false}
    networkQOS: {enable: false, ingressRequest: 0, ingressLimit: 100, egressRequest: 0,
      egressLimit: 100}
  lsClass:
    cpuQOS: {enable: true, groupIdentity: 2}
    memoryQOS: {enable: true, lowLimitPercent: 60, wmarkRatio: 95, wmarkScalePermill: 20,
      wmarkMinAdj: -25}
    resctrlQOS: {enable: true, catRangeStartPercent: 0, catRangeEndPercent: 100, mbaPercent: 100}
    networkQOS: {enable: true, ingressRequest: 60, ingressLimit: 100, egressRequest: "6G",
      egressLimit: "10G"}
  beClass:
    cpuQOS: {enable: true, groupIdentity: -1}
    memoryQOS: {enable: true, throttlingPercent: 80, wmarkRatio: 95, wmarkScalePermill: 20,
      wmarkMinAdj: 50, pageCacheEnable: true, pageCacheLimitPercent: 60,
      pageCacheReclaimSync: false}
    resctrlQOS: {enable: true, catRangeStartPercent: 0, catRangeEndPercent: 30, mbaPercent: 100}
    blkioQOS:
      enable: true
      blocks:
      - {name: /dev/sdb, type: device, ioCfg: {readIOPS: 20480, writeIOPS: 10240,
          readBPS: 104857600, writeBPS: 104857600}}
      - {name: data-vg, type: volumegroup, ioCfg: {ioWeightPercent: 60}}
    networkQOS: {enable: true, ingressRequest: 0, ingressLimit: 40, egressRequest: 0,
      egressLimit: 40}
  systemClass:
    cpuQOS: {enable: false, groupIdentity: 0}
    memoryQOS: {enable: false, pageCacheLimitSize: 1073741824}
  cgroupRoot:
    blkioQOS:
      enable: true
      blocks:
      - name: /dev/sdb
        type: device
        ioCfg: {readLatency: 3000, writeLatency: 3000, readLatencyPercent: 95,
          writeLatencyPercent: 95, enableUserModel: true, modelReadBPS: 209715200,
          modelWriteBPS: 209715200, modelReadSeqIOPS: 3000, modelWriteSeqIOPS: 3000,
          modelReadRandIOPS: 1500, modelWriteRandIOPS: 1500}
cpuBurstStrategy: {policy: auto, cpuBurstPercent: 1000, cfsQuotaBurstPercent: 300,
  cfsQuotaBurstPeriodSeconds: -1, sharePoolThresholdPercent: 50}
systemStrategy: {minFreeKbytesFactor: 100, watermarkScaleFactor: 150, memcgReapBackGround: 0,
  schedGroupIdentityEnabled: 1, schedIdleSaverWmark: 600000,
  schedFeatures: {ID_ABSOLUTE_EXPEL: true}, pageCacheLimitEnabled: 1, totalNetworkBandwidth: 10G}
extensions: {Object: {}}
hostApplications:
- name: nginx
  priority: koord-prod
  qos: LS
  cgroupPath: {base: CgroupRoot, parentDir: host-latency-sensitive/, relativePath: nginx/}
""")

_POOL = {"matchLabels": {"pool": "a"}, "matchExpressions": [
    {"key": "zone", "operator": "In", "values": ["b"]}
]}  # fmt: skip
_COLOCATION = {
    "enable": True,
    "metricAggregateDurationSeconds": 300,
    "metricReportIntervalSeconds": 60,
    "metricAggregatePolicy": {"durations": ["5m"]},
    "metricMemoryCollectPolicy": "usageWithPageCache",
    "cpuReclaimThresholdPercent": 60,
    "cpuCalculatePolicy": "usage",
    "memoryReclaimThresholdPercent": 65,
    "memoryCalculatePolicy": "usage",
    "batchCPUThresholdPercent": 100,
    "batchMemoryThresholdPercent": 100,
    "degradeTimeMinutes": 15,
    "updateTimeThresholdSeconds": 300,
    "resourceDiffThreshold": 0.1,
    "midReclaimMode": "x",
    "midCPUThresholdPercent": 100,
    "midMemoryThresholdPercent": 100,
    "midUnallocatedPercent": 0,
    "midStaticCPUReservedPercent": 0,
    "midStaticMemoryReservedPercent": 0,
}
_APPLICATIONS = {"applications": FULL_SLO["hostApplications"]}


def _strategies(strategy: dict[str, Any]) -> dict[str, Any]:
    return {"clusterStrategy": strategy, "nodeStrategies": [{"nodeSelector": _POOL, **strategy}]}


# By the names of the keys without "-config".
FULL_CONFIG: dict[str, Any] = {
    "colocation": {
        **_COLOCATION, "nodeConfigs": [{"nodeSelector": _POOL, **_COLOCATION}],
    },
    "resource-threshold": _strategies(FULL_SLO["resourceUsedThresholdWithBE"]),
    "resource-qos": _strategies(FULL_SLO["resourceQOSStrategy"]),
    "cpu-burst": _strategies(FULL_SLO["cpuBurstStrategy"]),
    "system": _strategies(FULL_SLO["systemStrategy"]),
    "host-application": {
        **_APPLICATIONS, "nodeConfigs": [{"nodeSelector": _POOL, **_APPLICATIONS}],
    },
}  # fmt: skip


def spoilt(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the value once for each field in it, itself included, with a wrong type there."""
    if isinstance(value, dict):
        yield where, "no object"
        for key, item in value.items():
            for place, bad in spoilt(item, f"{where}.{key}"):
                yield place, {**value, key: bad}
    elif isinstance(value, list):
        yield where, "no list"
        for index, item in enumerate(value):
            for place, bad in spoilt(item, f"{where}[{index}]"):
                yield place, [*value[:index], bad, *value[index + 1 :]]
    else:
        yield where, []
