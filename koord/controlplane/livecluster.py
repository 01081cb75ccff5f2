"""The cluster that a kubeconfig names, read once."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from koord.cluster.decoder import Kind
from koord.cluster.state import ClusterState
from koord.controlplane.clusterfeed import ClusterFeed
from koord.controlplane.kinds import SERVED, Served
from koord.kube.access.config import ApiConfig
from koord.kube.access.findconfig import find_config
from koord.kube.client import ApiClient
from koord.kube.errors import ConfigError
from koord.kube.transport import Limits, Transport
from koord.util.clock import SystemClock
from koord.util.errors import KoordError
from koord.util.health import Status
from koord.util.stop import Stop

PATIENCE = 120.0  # seconds for all lists
_LARGEST_PAGE = 64 << 20  # bytes


class UnreadCluster(KoordError):
    """The API server did not list what a plan needs."""


def find_cluster(kubeconfig: str) -> ApiConfig:
    """Return the API server to ask: of that file, else as kubectl finds it.

    Raises:
        ConfigError: there is none, or its file cannot be used.
    """
    home = Path(os.environ.get("HOME", "/nonexistent"))
    found = find_config(kubeconfig, os.environ, home=home)
    if found is None:
        raise ConfigError(
            "--kubeconfig",
            wanted="an API server, or a dump",
            found="no kubeconfig and no service account",
            hint="name a dump with --from, or a kubeconfig there or with KUBECONFIG",
        )
    return found


async def read_cluster(
    config: ApiConfig,
    name: str,
    warn: Callable[[str], None],
    *,
    served: Mapping[Kind[Any], Served] = SERVED,
    patience: float = PATIENCE,
) -> ClusterState:
    """Return all objects that decisions need, by one list of each kind.

    name is the user agent. warn is called with each object or kind that cannot be read.

    Raises:
        UnreadCluster: not all lists came within so many seconds.
    """
    clock = SystemClock()
    limits = Limits(answer_bytes=_LARGEST_PAGE, qps=50, burst=100, connections=32)
    client = ApiClient(Transport(config, clock, limits=limits, user_agent=name), clock)
    state = ClusterState()
    try:
        feed, stop = ClusterFeed(client, state, clock, served=served), Stop(clock)
        following = asyncio.create_task(feed.run(stop), name="cluster")
        try:
            async with asyncio.timeout(patience):
                await feed.wait_synced()
        except TimeoutError as err:
            raise UnreadCluster(_why(config, feed, patience)) from err
        finally:
            stop.set()
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
        for kind, health in feed.kinds_health().items():
            if health.status is not Status.OK:
                warn(f"{kind}: {health.reason}")
        return state
    finally:
        await client.close()


def _why(config: ApiConfig, feed: ClusterFeed, patience: float) -> str:
    troubles = {
        health.reason for health in feed.kinds_health().values() if health.status is not Status.OK
    }
    found = "; ".join([feed.health().reason, *sorted(troubles)][:5])
    return f"{config.server}: wanted all lists within {patience:g} s, found {found}"
