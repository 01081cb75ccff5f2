"""When a server that has just started, or a kind that is new to it, can be used."""

import asyncio

from koord.kube import errors
from koord.kube.client import ApiClient, Resource, WatchLimits

TIMEOUT = 30.0  # seconds, in real time
_NOT_YET = (errors.NotFound, errors.Unreachable, errors.ServerError, errors.TooManyRequests)


async def until_served(client: ApiClient, resource: Resource) -> None:
    """Return when the server lists a kind and lets it be watched.

    A list comes from etcd while the server's cache, which serves the watches, is still filled:
    until then these are refused with 429.
    """
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                version = (await client.list(resource.collection())).resource_version
                query = {"resourceVersion": version}
                async with client.watch(resource.collection(), query, WatchLimits(seconds=1)):
                    return
            except _NOT_YET:
                await asyncio.sleep(0.1)
