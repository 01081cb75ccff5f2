"""Writes this node's devices to its Device object where the two differ."""

import random
from collections.abc import Callable

from koord.api.node import Node
from koord.kube.client import DEVICES, ApiClient
from koord.util.clock import Clock
from koordlet.reporter.object_reconciler import ObjectReconciler
from koordlet.rules.device_object import (
    PublishedDevices,
    device_patch,
    new_device_object,
    parse_published_devices,
)
from koordlet.rules.devices import NodeDevices
from koordlet.rules.object_patch import Operation
from koordlet.statesinformer.kube_sources import PublishedObject


class _DeviceRules:
    resource = DEVICES
    subject = "devices"

    def __init__(self, devices: Callable[[], NodeDevices], node_name: str, clock: Clock) -> None:
        self._devices = devices
        self._name = node_name
        self._clock = clock
        self._latest: NodeDevices | None = None

    def wanted(self) -> NodeDevices | None:
        found = self._devices()
        if not found.known:
            return None
        if found != self._latest:
            self._latest = found
        return self._latest

    def new(self, owner: Node, wanted: NodeDevices) -> dict[str, object]:
        return new_device_object(self._name, owner, wanted, self._clock.wall())

    def patch(self, published: PublishedDevices, wanted: NodeDevices) -> list[Operation]:
        return device_patch(published, wanted, self._clock.wall())


class DeviceReporter(ObjectReconciler[NodeDevices, PublishedDevices]):
    """Keeps the published devices of this node right."""

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        devices: Callable[[], NodeDevices],
        clock: Clock,
        *,
        interval: float,
        owner: Callable[[], Node | None],
        observe_only: Callable[[], str] = lambda: "",
        draw: Callable[[], float] = random.random,
    ) -> None:
        """devices: what is known now; the other arguments are those of ObjectReconciler."""
        super().__init__(
            client,
            node_name,
            _DeviceRules(devices, node_name, clock),
            PublishedObject(
                "Device",
                DEVICES,
                parse_published_devices,
                client=client,
                node_name=node_name,
                clock=clock,
                gate="Accelerators",
            ),
            clock,
            interval=interval,
            owner=owner,
            observe_only=observe_only,
            draw=draw,
        )
