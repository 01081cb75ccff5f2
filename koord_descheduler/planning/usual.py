"""The configuration of a plan for which none is given."""

import json
from collections.abc import Mapping

from koord_descheduler.config.v1alpha2 import GROUP_VERSION, KIND

LOW: Mapping[str, float] = {"cpu": 45, "memory": 55}
HIGH: Mapping[str, float] = {"cpu": 75, "memory": 80}
KEPT_NAMESPACES = ("kube-system", "koordinator-system")


def usual_configuration(low: Mapping[str, float] = LOW, high: Mapping[str, float] = HIGH) -> bytes:
    """Return a configuration file: LowNodeLoad with these thresholds, in percent of allocatable.

    All else is as in the configuration that Koordinator ships, where LowNodeLoad is not enabled.
    """
    namespaces = {"exclude": list(KEPT_NAMESPACES)}
    args = {
        "LowNodeLoad": {
            "evictableNamespaces": namespaces,
            "lowThresholds": dict(low),
            "highThresholds": dict(high),
        },
        "MigrationController": {"evictionPolicy": "Eviction", "namespaces": namespaces},
    }
    profile = {
        "name": "koord-descheduler",
        "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
        "pluginConfig": [{"name": name, "args": one} for name, one in args.items()],
    }
    document = {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "deschedulingInterval": "10s",
        "profiles": [profile],
    }
    return json.dumps(document).encode()
