"""The states as one owner of callbacks sees them, a plugin for example.

Its callbacks are called only while it is on, and what goes wrong in them is reported to it.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from koordlet.statesinformer.callbacks import StateType, UpdateCbFn

if TYPE_CHECKING:
    from koord.api.node import Node
    from koord.api.nodeslo import NodeSLO
    from koordlet.rules.nodetopology import NodeTopology
    from koordlet.statesinformer.informer import StatesInformer
    from koordlet.statesinformer.model import PodMeta

Failed = Callable[[str, str, BaseException | None], None]
"""Called after each callback that failed: its type and name, why, and what it raised if it did."""


class Subscription:
    """The callbacks of one owner. Off until begin; all methods belong to the event loop."""

    def __init__(self, informer: "StatesInformer", owner: str, failed: Failed) -> None:
        self.owner = owner
        self.on = False
        self.failing: dict[str, str] = {}  # why, by type and name; without what works again
        self.states = OwnedStates(informer, self)
        """What the owner gets: the informer, with callbacks that belong to this subscription."""
        self._informer = informer
        self._failed = failed

    def begin(self) -> None:
        """Call the callbacks from now on, each soon with the state of now if there is one."""
        if not self.on:
            self.on = True
            self._informer.begin(self)

    def end(self) -> list[asyncio.Task[None]]:
        """Call none any more; return those that still run, cancelled."""
        self.on = False
        self.failing.clear()
        return self._informer.end(self)

    def running(self) -> list[asyncio.Task[None]]:
        """The callbacks that run now."""
        return self._informer.running(self)

    def failed(self, callback: str, error: str, cause: BaseException | None) -> None:
        """Take note that a callback failed."""
        self.failing[callback] = error
        self._failed(callback, error, cause)

    def succeeded(self, callback: str) -> None:
        """Take note that a callback went well."""
        self.failing.pop(callback, None)


class OwnedStates:
    """The states informer for one owner; see koordlet.plugin.states.States."""

    def __init__(self, informer: "StatesInformer", subscription: Subscription) -> None:
        self._informer = informer
        self._subscription = subscription

    def node(self) -> "Node | None":
        return self._informer.node()

    def node_slo(self) -> "NodeSLO | None":
        return self._informer.node_slo()

    def node_topology(self) -> "NodeTopology | None":
        return self._informer.node_topology()

    def pods(self) -> "tuple[PodMeta, ...]":
        return self._informer.pods()

    def pod(self, uid: str) -> "PodMeta | None":
        return self._informer.pod(uid)

    def has_synced(self) -> bool:
        return self._informer.has_synced()

    def register_callbacks(
        self, state_type: StateType | str, name: str, description: str, fn: UpdateCbFn
    ) -> None:
        """Have fn called while the owner is on; raises as StatesInformer.register_callbacks."""
        self._informer.register_callbacks(
            state_type, name, description, fn, subscription=self._subscription
        )

    def send_callback(self, state_type: StateType | str) -> None:
        self._informer.send_callback(state_type)
