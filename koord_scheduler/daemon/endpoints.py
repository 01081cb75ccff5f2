"""HTTP endpoints of the daemon: Koordinator's REST services, and the debug flags."""

import asyncio
import json
from collections.abc import Awaitable, Callable

from aiohttp import web

from koord.cluster.state import ClusterState
from koord.component.flag_values import read_bool, read_int
from koord.component.http.endpoints import Handler, guarded
from koord.component.http.guard import Guard, local_only
from koord.component.http.limits import read_small_body
from koord.component.http.responses import MAX_BODY, HttpError, json_body, json_bytes, text_response
from koord.component.plugins.execution import FailureLog
from koord.util.clock import Clock
from koord.util.errors import error_text
from koord.util.logs import get_logger
from koord_scheduler.framework.extension.providers import Endpoint, PluginRequest, ProvidedServices
from koord_scheduler.scheduling.cycle import Debugging

ROOT = "/apis/v1"
NOT_LEADER = {"message": "the instance is not leader"}
MAX_SECONDS = 10.0  # seconds that a plugin may take for a response

log = get_logger("koord_scheduler.server")


class RestServices:
    """Answers on the leader. Plugins are known once they are made."""

    def __init__(self, cluster: ClusterState, is_leader: Callable[[], bool], clock: Clock) -> None:
        self._cluster = cluster
        self._is_leader = is_leader
        self._provided: ProvidedServices | None = None
        self._failures = FailureLog(log, clock)

    def provide(self, provided: ProvidedServices) -> None:
        """Serve the endpoints of plugins from now on."""
        self._provided = provided

    def add_to(self, app: web.Application, guard: Guard) -> None:
        """Add all routes to an application, for clients that the guard lets pass."""

        def on_leader(response: Callable[[web.Request], Awaitable[web.Response]]) -> Handler:
            async def handler(request: web.Request) -> web.Response:
                if not self._is_leader() or self._provided is None:
                    return _response(NOT_LEADER, 503)
                return await response(request)

            return guarded(guard, handler)

        app.router.add_get(f"{ROOT}/__services__", on_leader(self._services))
        app.router.add_get(f"{ROOT}/nodes/{{node}}", on_leader(self._node))
        app.router.add_route("*", f"{ROOT}/plugins/{{plugin}}/{{rest:.*}}", on_leader(self._plugin))

    async def _services(self, _: web.Request) -> web.Response:
        """The routes by method."""
        found = {"GET": [f"{ROOT}/__services__", f"{ROOT}/nodes/:nodeName"]}
        for plugin, endpoints in self._endpoints().items():
            for one in endpoints:
                path = one.path.strip("/").replace("{", ":").replace("}", "")
                found.setdefault(one.method, []).append(f"{ROOT}/plugins/{plugin}/{path}")
        return _response({method: sorted(paths) for method, paths in sorted(found.items())})

    async def _node(self, request: web.Request) -> web.Response:
        """Return the pods and resources that the scheduler counts on a node."""
        view, name = self._cluster.view(), request.match_info["node"]
        row = view.row(name)
        if row is None:
            return _response({"message": f"node {name} is not known"}, 404)
        names = sorted(view.resources, key=view.resources.__getitem__)
        return _response(
            {
                "name": name,
                "allocatable": _amounts(names, view.allocatable[row].tolist()),
                "requested": _amounts(names, view.requested[row].tolist()),
                "pods": sorted(pod.key for pod in view.pods(row)),
            }
        )

    async def _plugin(self, request: web.Request) -> web.Response:
        plugin, rest = request.match_info["plugin"], request.match_info["rest"]
        for one in self._endpoints().get(plugin, ()):
            parameters = one.match(request.method, rest)
            if parameters is not None:
                return await self._asked(plugin, one, parameters, request)
        return _response({"message": f"{request.method} {request.path}: no such endpoint"}, 404)

    async def _asked(
        self, plugin: str, one: Endpoint, parameters: dict[str, str], request: web.Request
    ) -> web.Response:
        data = await read_small_body(request, MAX_BODY)
        try:
            body = json.loads(data) if request.body_exists else None
            asked = PluginRequest(parameters=parameters, query=dict(request.query), body=body)
            async with asyncio.timeout(MAX_SECONDS):
                return _response(await one.answer(asked))
        except LookupError as err:
            # The text of a KeyError is the key alone.
            text = error_text(err) if isinstance(err, KeyError) else str(err)
            return _response({"message": text}, 404)
        except (ValueError, RecursionError) as err:
            return _response({"message": str(err)}, 400)
        except Exception as err:  # of a plugin
            text = self._failures.failed("endpoint.failed", plugin, err, path=one.path)
            return _response({"message": f"plugin {plugin} failed: {text}"}, 500)

    def _endpoints(self) -> dict[str, tuple[Endpoint, ...]]:
        return {} if self._provided is None else dict(self._provided.endpoints)


def _amounts(names: list[str], amounts: list[int]) -> dict[str, int]:
    """Those that are not zero: milli-cores, bytes, pods, or units of what it is."""
    return {name: amount for name, amount in zip(names, amounts, strict=True) if amount}


def _response(value: object, status: int = 200) -> web.Response:
    response = json_body(json_bytes(value))
    response.set_status(status)
    return response


_MAX_BODY_BYTES = 64  # characters of a value


def add_debug_flags(app: web.Application, debugging: Debugging) -> None:
    """Add the paths to an application."""

    def set_scores(text: str) -> None:
        count = read_int(text)
        if count < 0:
            raise ValueError("wanted 0 or more")
        debugging.scores = count

    def set_filters(text: str) -> None:
        debugging.filters = read_bool(text)

    def set_diagnosis(text: str) -> None:
        debugging.diagnosis = read_bool(text)

    def set_blocking(text: str) -> None:
        debugging.diagnosis_blocking = read_bool(text)

    for letter, name, change in (
        ("s", "debug-scores", set_scores),
        ("f", "debug-filters", set_filters),
        ("d", "debug-diagnosis", set_diagnosis),
        ("db", "debug-diagnosis-blocking", set_blocking),
    ):
        handler = guarded(local_only, _changing(name, change))
        app.router.add_put(f"/debug/flags/{letter}", handler)


def _changing(name: str, change: Callable[[str], None]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        text = (await read_small_body(request, MAX_BODY)).decode(errors="replace").strip()
        try:
            change(text)
        except ValueError as err:
            raise HttpError(400, f"{name}: {err}, found {text[:_MAX_BODY_BYTES]!r}") from err
        return text_response(f"successfully set {name} to {text}\n")

    return handle
