"""A scheduler with Reservation, and an API server that has Reservations."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from koord.api.reservation import ALLOCATED
from koord.cluster.decoder import Decoder
from koord.cluster.keptfields import reads_of
from koord.controlplane.testing import api_error_response
from koord.kube.transport import Call
from koord.util.health import Health
from koord_scheduler.framework.handle import Handle
from koord_scheduler_plugins.default_binding import DefaultPreBind
from koord_scheduler_plugins.reservation.args import ReservationArgs
from koord_scheduler_plugins.reservation.plugin import ReservationPlugin
from koord_scheduler_plugins.reservation.status import RESERVATIONS
from tests.support.reservations import MINE, reservation_json
from tests.support.scheduler.framework import FreeCpu
from tests.support.scheduler.loop import Api, Loop

Json = dict[str, Any]
Points = Mapping[str, Mapping[str, Any]]
POINTS = ("preFilter", "postFilter", "preScore", "score", "reserve")


class ReservationApi(Api):
    """Also Reservations; changes of them come to the informer by deliver."""

    publish: Callable[[str, Mapping[str, Any] | None], None]
    versions = 0

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.reservations: dict[str, Json] = {}
        self.written: list[tuple[str, Json]] = []  # name, and the body of a patch

    def put(self, item: Json) -> None:
        """Take a Reservation, as a user makes or changes it."""
        self.versions += 1
        item["metadata"]["resourceVersion"] = str(self.versions)
        name, copy = item["metadata"]["name"], json.loads(json.dumps(item))
        self.reservations[name] = item
        self._outbox.append(lambda: self.publish(name, copy))

    def drop(self, name: str) -> None:
        del self.reservations[name]
        self._outbox.append(lambda: self.publish(name, None))

    def _carry_out(self, call: Call) -> Json:
        match call.path.strip("/").split("/"):
            case ["apis", "scheduling.koordinator.sh", "v1alpha1", "reservations", name, *_]:
                return self._reservation(call, name, json.loads(call.body or b"{}"))
            case ["api", "v1", "namespaces", namespace, "pods", name] if call.method == "PATCH":
                return self._patch_metadata(call, f"{namespace}/{name}")
        return super()._carry_out(call)

    def _reservation(self, call: Call, name: str, body: Json) -> Json:
        found = self.reservations.get(name)
        if found is None:
            raise api_error_response(call, 404, "NotFound", f"{name} not found")
        if call.method == "GET":
            return found
        if call.method == "DELETE":
            self.drop(name)
            return {"kind": "Status", "status": "Success"}
        for key in ("uid", "resourceVersion"):
            wanted = body["metadata"].get(key)
            if wanted not in (None, found["metadata"].get(key)):
                raise api_error_response(call, 409, "Conflict", f"{key} is another one")
        self.written.append((name, body))
        changed = json.loads(json.dumps(found))
        part = "status" if call.path.endswith("/status") else "metadata"
        merge(changed.setdefault(part, {}), body.get(part, {}))
        self.put(changed)
        return changed

    def _patch_metadata(self, call: Call, key: str) -> Json:
        body = json.loads(call.body or b"{}")
        found = self._find(call, key, body)
        merge(found["metadata"], body["metadata"])
        self._publish(key)
        return found


def merge(into: Json, patch: Mapping[str, Any]) -> None:
    """Apply a JSON merge patch."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, Mapping):
            if not isinstance(into.get(key), dict):
                into[key] = {}
            merge(into[key], value)
        else:
            into[key] = value


class World(Loop):
    """A scheduler with the plugin, and nodes with so many cores."""

    api_type = ReservationApi
    api: ReservationApi
    plugin: ReservationPlugin

    def __init__(self) -> None:
        super().__init__()
        self.api.publish = self._publish

    def _publish(self, name: str, item: Mapping[str, Any] | None) -> None:
        informers: Any = self.services.informers
        if item is None:
            informers.delete(RESERVATIONS, name)
        else:
            informers.apply(RESERVATIONS, item)

    async def begin(self, *cores: int, more: Points | None = None, **args: Any) -> "World":
        """cores: of nodes n0, n1 and so on. more: plugins by point, called after the others."""
        self.api.decoder = Decoder(reads_of(ReservationPlugin))

        def make(_: object, handle: Handle) -> ReservationPlugin:
            self.plugin = ReservationPlugin(ReservationArgs(**args), handle)
            return self.plugin

        self.registry.register("Reservation", make)
        points: dict[str, Any] = {point: {"Reservation": None} for point in POINTS}
        points["filter"] = {"FreeCpu": FreeCpu(), "Reservation": None}
        self.registry.register("DefaultPreBind", DefaultPreBind)
        points["preBind"] = {"Reservation": None, "DefaultPreBind": None}
        points["bind"] = {"Reservation": None, "PostingBinder": self.binder}
        for point, plugins in (more or {}).items():
            points[point] = {**points.get(point, {}), **plugins}
        await self.build(**points)
        for number, cpu in enumerate(cores):
            self.api.add_node(f"n{number}", cpu=str(cpu))
        await self.start()
        for name, part in self.plugin.new_controllers().items():
            self.services.shared.put(name, part)
        self._parts = asyncio.create_task(self.services.shared.run(self.stop, self.clock, Health()))
        await self.settle()
        return self

    async def end(self) -> None:
        await super().end()
        await self._parts

    async def advance(self, seconds: float) -> None:
        """Let time pass, in steps after each of which watch events come."""
        step = max(30.0, seconds / 100)
        while seconds > 0:
            await super().advance(min(step, seconds))
            seconds -= step

    async def reservation(self, name: str = "r", cpu: str = "2", **more: Any) -> None:
        """A Reservation of profile p that waits for its node."""
        template = {"schedulerName": "p", **more.pop("template", {})}
        more = {"node": "", "phase": "Pending", "allocateOnce": False, **more}
        self.api.put(reservation_json(name, {"cpu": cpu}, template=template, **more))
        await self.settle()

    async def consumer(
        self, name: str = "web", cpu: str = "1", annotations: Json | None = None, **more: Any
    ) -> str:
        """A pod of the owner of all reservations."""
        labels = MINE["labelSelector"]["matchLabels"]
        key = self.api.add_pod(name, cpu=cpu, labels=labels, **more)
        if annotations:
            self.api.change(key, metadata={"annotations": annotations})
        await self.settle()
        return key

    def status(self, name: str = "r") -> Json:
        found: Json = self.api.reservations[name]["status"]
        return found

    def given(self, key: str) -> str:
        """The name of the reservation that a pod has, as the API server has it; "": none."""
        annotations = self.api.pods[key]["metadata"].get("annotations") or {}
        text = annotations.get(ALLOCATED)
        return json.loads(text)["name"] if text else ""

    def requested(self, node: str) -> int:
        """Thousandths of a core that pods take on a node, reserve pods too."""
        view = self.state.view()
        row = view.row(node)
        assert row is not None
        return view.requested_of(row, view.resources["cpu"])
