"""The callbacks of one owner, for example a plugin.

They are called only while the owner is on; their failures are reported to the owner.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from koordlet.statesinformer.callbacks import StateType, UpdateCbFn

if TYPE_CHECKING:
    from koord.api.nodes.node import Node
    from koord.api.slo.nodeslo import NodeSLO
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
        """The informer for the owner: callbacks registered there belong to this subscription."""
        self._informer = informer
        self._failed = failed

    def begin(self) -> None:
        """Call the callbacks from now on, each soon with the present state if there is one."""
        if not self.on:
            self.on = True
            self._informer.begin(self)

    def end(self) -> list[asyncio.Task[None]]:
        """Stop calling them; cancel and return those that run."""
        self.on = False
        self.failing.clear()
        return self._informer.end(self)

    def running(self) -> list[asyncio.Task[None]]:
        """The callbacks that run now."""
        return self._informer.running(self)

    def failed(self, callback: str, error: str, cause: BaseException | None) -> None:
        """Record that a callback failed, and report it to the owner."""
        self.failing[callback] = error
        self._failed(callback, error, cause)

    def succeeded(self, callback: str) -> None:
        """Record that a callback succeeded."""
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
        """Call fn while the owner is on; raises as StatesInformer.register_callbacks."""
        self._informer.register_callbacks(
            state_type, name, description, fn, subscription=self._subscription
        )

    def send_callback(self, state_type: StateType | str) -> None:
        self._informer.send_callback(state_type)
