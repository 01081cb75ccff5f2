"""A client for work that only the leader may do."""

from collections.abc import Callable
from functools import partial

from koord.controlplane.quickjson import encode_quickly
from koord.kube.client import ApiClient
from koord.kube.errors import KubeError
from koord.kube.transport import Call, Transport
from koord.util.clock import Clock


class NotLeading(KubeError):
    """A request that changes something was not sent, because this replica does not lead."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where}: not sent, as this replica does not lead (any more)")


class LeaderClient(ApiClient):
    """Reads always, and sends what changes something only while this process leads.

    That is asked right before each request is sent, so that also a process that was held up for
    longer than its lease, or a request that had to wait for its turn, changes nothing.
    """

    def __init__(self, transport: Transport, clock: Clock, leads: Callable[[], bool]) -> None:
        super().__init__(transport, clock, encode=encode_quickly)
        self._leads = leads

    async def _exchange(self, call: Call) -> bytes:
        if call.method == "GET":
            return await super()._exchange(call)
        check = partial(self._check, call.where)
        check()
        return await super()._exchange(call._replace(check=check))

    def _check(self, where: str) -> None:
        if not self._leads():
            raise NotLeading(where)
