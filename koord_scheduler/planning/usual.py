"""The configuration of a plan for which none is given."""

import json
from collections.abc import Collection, Iterable

from koord_scheduler.config.v1 import GROUP_VERSION, KIND

BESIDE_DEFAULTS = ("LoadAwareScheduling",)


def usual_configuration(schedulers: Iterable[str], known: Collection[str]) -> bytes:
    """Return a configuration file: the default plugins and BESIDE_DEFAULTS, for these schedulers.

    known: the plugins that are installed.
    """
    enabled = [{"name": name} for name in BESIDE_DEFAULTS if name in known]
    plugins = {"multiPoint": {"enabled": enabled}}
    document = {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "profiles": [{"schedulerName": name, "plugins": plugins} for name in schedulers],
    }
    return json.dumps(document).encode()
