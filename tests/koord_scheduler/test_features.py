"""Feature gates of the scheduler: those that plugins look at are not called without effect."""

import re
from pathlib import Path

import koord_scheduler_plugins
from koord_scheduler.daemon.settings import GATES, feature_gates

PLUGINS = Path(koord_scheduler_plugins.__file__).parent


def test_gates_that_a_plugin_asks_for_are_built() -> None:
    """Each name of a gate in a shipped plugin: switched on, nothing says that it does nothing."""
    text = "\n".join(path.read_text() for path in PLUGINS.rglob("*.py"))
    asked = {name for name in re.findall(r'"([A-Za-z]+)"', text) if name in GATES}
    assert {"DevicePluginAdaption", "MultiQuotaTree"} <= asked
    gates = feature_gates()
    gates.set_from_map({name: True for name in asked if not GATES[name].default})
    assert asked.isdisjoint(gates.not_built())
