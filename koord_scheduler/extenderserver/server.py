"""An HTTP server for the plugins of profiles."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from koord.component.http.site import HttpServer
from koord.component.http.sockets import Address
from koord.util.clock import Clock
from koord_scheduler import PREFIX
from koord_scheduler.cache.assumed import SchedulerState
from koord_scheduler.extenderserver.access import Access
from koord_scheduler.extenderserver.app import ExtenderApp
from koord_scheduler.extenderserver.host import PluginHost
from koord_scheduler.extenderserver.metrics import ExtenderMetrics
from koord_scheduler.extenderserver.served import VERBS, verbs_of
from koord_scheduler.framework.profiles.profile import ProfilePlugins


def served_verbs(profiles: Sequence[ProfilePlugins]) -> tuple[str, ...]:
    """The verbs that any of the profiles needs."""
    wanted = {verb for one in profiles for verb in verbs_of(one.settings)}
    return tuple(verb for verb in VERBS if verb in wanted)


def extender_server(
    profiles: Sequence[ProfilePlugins],
    state: SchedulerState,
    address: Address,
    access: Access,
    *,
    timeout: float,
    fail_open: bool,
    registry: CollectorRegistry,
    clock: Clock,
) -> HttpServer:
    """Return a server that answers a kube-scheduler, whose httpTimeout for it is timeout seconds.

    fail_open: see PluginHost.
    """
    host = PluginHost(profiles, state, clock, fail_open=fail_open)
    metrics = ExtenderMetrics(registry)
    verbs = served_verbs(profiles)
    app = ExtenderApp(host, verbs, timeout, metrics, clock, guard=access.guard)
    return HttpServer(
        app.application(),
        address,
        access.tls,
        clock=clock,
        registry=registry,
        prefix=f"{PREFIX}_extender",
    )
