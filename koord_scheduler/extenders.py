"""HTTP extenders: each is called over HTTP, in the order of the configuration."""

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import json

from koord.cluster.facts import ClusterPod
from koord.kube.client import NODES, PODS, ApiClient
from koord.kube.credentials import ApiConfig, Material
from koord.kube.errors import KubeError
from koord.kube.transport import Call, Deadline, Limits, Transport
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, KoordError
from koord.util.logs import LimitedLog, get_logger
from koord_scheduler import extendermessages as messages
from koord_scheduler.config.v1 import Extender, ExtenderTLSConfig
from koord_scheduler.extendermessages import (
    MAX_SCORE,
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderFilterResult,
    MetaVictims,
)
from koord_scheduler.framework.handle import Informers, Victims
from koord_scheduler.framework.status import MAX_NODE_SCORE, Status

MAX_RESPONSE_BYTES = 64 << 20  # bytes: 5,000 nodes that travel themselves
CONNECTIONS = 64

T = TypeVar("T")


class ExtenderFailed(KoordError):
    """An extender did not answer in time, or not with what it was asked for."""


class ExtenderClient:
    """Asks one extender. Nothing is tried twice."""

    def __init__(self, settings: Extender, clock: Clock) -> None:
        self.settings = settings
        self.name = settings.url_prefix
        self._clock = clock
        seconds = settings.http_timeout
        limits = Limits(
            connect=seconds,
            headers=seconds,
            body=seconds,
            response_bytes=MAX_RESPONSE_BYTES,
            qps=0,
            connections=CONNECTIONS,
        )
        self._transport = Transport(
            api_config(settings), clock, limits=limits, user_agent="koord-scheduler"
        )
        self._managed = frozenset(one.name for one in settings.managed_resources)

    def is_interested(self, pod: ClusterPod) -> bool:
        """Whether it is asked about this pod: any, or one with a resource that it manages."""
        if not self._managed:
            return True
        named = (*pod.spec.requests, *pod.spec.limits)
        return any(name in self._managed for name, _ in named)

    async def filter(self, asked: ExtenderArgs) -> ExtenderFilterResult:
        """Return which of the nodes pass.

        Raises:
            ExtenderFailed: it says that it failed, or there was no such response.
        """
        verb = self.settings.filter_verb
        body = messages.write_extender_args(asked)
        response = await self._ask(verb, body, messages.read_filter_result)
        if response.error:
            raise ExtenderFailed(f"extender {self.name}: {response.error}")
        if self.settings.node_cache_capable:
            sent = frozenset(asked.names)
            others = [name for name in response.names or () if name not in sent]
            if others:
                raise ExtenderFailed(
                    f"extender {self.name}: claims a filtered node: {others[0][:253]} which is not "
                    "found in the input node list"
                )
        return response

    async def prioritize(self, asked: ExtenderArgs) -> Mapping[str, int]:
        """Return scores of nodes, from 0 to 10. Raises ExtenderFailed."""
        verb = self.settings.prioritize_verb
        return await self._ask(verb, messages.write_extender_args(asked), messages.read_priorities)

    async def preempt(
        self,
        pod: bytes,
        victims: Mapping[str, MetaVictims],
        whole: Mapping[str, bytes] | None,
    ) -> Mapping[str, MetaVictims]:
        """Return the candidates that it leaves. Raises ExtenderFailed."""
        body = messages.write_preempt(pod, victims, whole)
        return await self._ask(self.settings.preempt_verb, body, messages.read_preempt_result)

    async def bind(self, asked: ExtenderBindingArgs) -> None:
        """Let the extender bind a pod.

        Raises:
            ExtenderFailed: the pod is not bound; without a response, it may be bound.
        """
        verb = self.settings.bind_verb
        error = await self._ask(verb, messages.write_bind(asked), messages.read_error)
        if error:
            raise ExtenderFailed(f"extender {self.name}: {error}")

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def _ask(self, verb: str, body: bytes, read: Callable[[bytes], T]) -> T:
        call = Call("POST", f"/{verb}", body=body)
        try:
            async with Deadline(self._clock, call.where) as deadline:
                deadline.enter("the whole answer", self.settings.http_timeout)
                data = await self._transport.exchange(call)
            return read(data)
        except (KubeError, InvalidObject) as err:
            raise ExtenderFailed(f"extender {self.name}: {err}") from err


def api_config(settings: Extender) -> ApiConfig:
    """Address and TLS of an extender.

    Without a CA, enableHTTPS means that nothing is verified: as in Kubernetes.
    """
    tls = settings.tls_config or ExtenderTLSConfig()
    ca = _material(tls.ca_data, tls.ca_file)
    return ApiConfig(
        server=settings.url_prefix.rstrip("/"),
        source="extenders of the configuration",
        server_setting="urlPrefix",
        verify_setting="tlsConfig.insecure" if tls.insecure else "tlsConfig.caFile",
        ca=ca,
        verify=not tls.insecure and not (settings.enable_https and ca is None),
        tls_server_name=tls.server_name,
        certificate=_material(tls.cert_data, tls.cert_file),
        key=_material(tls.key_data, tls.key_file),
    )


def _material(data: str, file: str) -> Material | None:
    if data:
        return base64.b64decode(data)
    return Path(file) if file else None


EXTENDER = "Extender"  # by this name rejections are noted; any event may help
_DROPPED = "node(s) were left out by an extender without a reason"

log = get_logger("koord_scheduler.extenders")


class WholeObjects(Protocol):
    """Objects as the API server has them, which extenders get."""

    async def pod(self, pod: ClusterPod) -> bytes:
        """Return a pod. Raises KoordError: it cannot be had, or is another one by now."""

    async def nodes(self, names: Sequence[str]) -> tuple[bytes, ...]:
        """Return those of the nodes that there are. Raises KoordError: they cannot be had."""


@dataclass(frozen=True, slots=True)
class ExtendersFiltered:
    """The nodes that extenders leave, and their rejections of the others."""

    names: tuple[str, ...]
    rejections: Mapping[str, Status] = field(default_factory=dict)  # of the others, by node


class Extenders:
    """Asks them in the order of the configuration: those that may fail come last."""

    def __init__(self, settings: Iterable[Extender], objects: WholeObjects, clock: Clock) -> None:
        self._clients = [ExtenderClient(one, clock) for one in settings]
        self._objects = objects
        self._failures = LimitedLog(log, clock)

    @property
    def choosing(self) -> bool:
        """Whether any of them filters or scores nodes."""
        return any(
            one.settings.filter_verb or one.settings.prioritize_verb for one in self._clients
        )

    def filters(self, pod: ClusterPod) -> bool:
        """Whether any of them filters nodes for the pod."""
        return any(one.settings.filter_verb and one.is_interested(pod) for one in self._clients)

    async def filter(self, pod: ClusterPod, names: Sequence[str]) -> ExtendersFiltered:
        """Ask one after the other which nodes pass; each sees what those before it left.

        Raises:
            KoordError: one that must not fail has failed.
        """
        left, rejections = tuple(names), dict[str, Status]()
        for one in self._clients:
            if not left:
                break
            if not one.settings.filter_verb or not one.is_interested(pod):
                continue
            try:
                response = await one.filter(await self._arguments(one, pod, left))
            except KoordError as err:
                self._failed(one, "filter", err)
                continue
            passed = frozenset(response.names or ())
            for name in left:
                if name not in passed:
                    rejections[name] = _rejection(name, response.failed, response.unresolvable)
            left = tuple(name for name in left if name in passed)
        return ExtendersFiltered(left, rejections)

    async def prioritize(self, pod: ClusterPod, names: Sequence[str]) -> Mapping[str, int]:
        """Ask all at once for scores; return what they add to the totals of nodes.

        One that fails adds nothing.
        """
        asked = [
            one for one in self._clients if one.settings.prioritize_verb and one.is_interested(pod)
        ]
        responses = await asyncio.gather(*(self._scores(one, pod, tuple(names)) for one in asked))
        totals: dict[str, int] = {}
        for one, scores in zip(asked, responses, strict=True):
            factor = one.settings.weight * (MAX_NODE_SCORE // MAX_SCORE)
            for name, score in scores.items():
                totals[name] = totals.get(name, 0) + score * factor
        return totals

    async def preempt(
        self, pod: ClusterPod, candidates: Mapping[str, Victims]
    ) -> Mapping[str, Victims]:
        """Let the extenders choose victims, one after the other."""
        known = {victim.uid: victim for pods, _ in candidates.values() for victim in pods}
        left = {
            name: MetaVictims(tuple(one.uid for one in pods), violations)
            for name, (pods, violations) in candidates.items()
        }
        for one in self._clients:
            if not left or not one.settings.preempt_verb or not one.is_interested(pod):
                continue
            try:
                left = await self._preempt(one, pod, left, known)
            except KoordError as err:
                self._failed(one, "preempt", err)
        return {
            name: (tuple(known[uid] for uid in found.uids), found.violations)
            for name, found in left.items()
        }

    async def bind(self, pod: ClusterPod, node: str) -> bool:
        """Let the extender that binds this pod do so; return whether there is one.

        Raises:
            ExtenderFailed: it failed, and its errors are not ignorable.
        """
        for one in self._clients:
            if one.settings.bind_verb and one.is_interested(pod):
                try:
                    await one.bind(ExtenderBindingArgs(pod.namespace, pod.name, pod.uid, node))
                except ExtenderFailed as err:
                    self._failed(one, "bind", err)
                else:
                    return True
        return False

    async def close(self) -> None:
        """Close all connections."""
        for one in self._clients:
            await one.close()

    async def _arguments(
        self, one: ExtenderClient, pod: ClusterPod, names: tuple[str, ...]
    ) -> ExtenderArgs:
        nodes = None if one.settings.node_cache_capable else await self._objects.nodes(names)
        return ExtenderArgs(await self._objects.pod(pod), names, nodes)

    async def _scores(
        self, one: ExtenderClient, pod: ClusterPod, names: tuple[str, ...]
    ) -> Mapping[str, int]:
        try:
            return await one.prioritize(await self._arguments(one, pod, names))
        except KoordError as err:
            self._failures.warning("extender.failed", verb="prioritize", error=str(err))
            return {}

    async def _preempt(
        self,
        one: ExtenderClient,
        pod: ClusterPod,
        left: Mapping[str, MetaVictims],
        known: Mapping[str, ClusterPod],
    ) -> dict[str, MetaVictims]:
        whole = None
        if not one.settings.node_cache_capable:
            wanted = {uid for found in left.values() for uid in found.uids}
            whole = {uid: await self._objects.pod(known[uid]) for uid in wanted}
        response = await one.preempt(await self._objects.pod(pod), left, whole)
        kept = {}
        for name, found in response.items():
            if name not in left:
                raise ExtenderFailed(f"extender {one.name}: {name[:253]} was no candidate")
            for uid in found.uids:
                if uid not in known or known[uid].node != name:
                    raise ExtenderFailed(f"extender {one.name}: no pod {uid[:253]} on {name}")
            if found.uids:
                kept[name] = found
            elif not one.settings.ignorable:
                raise ExtenderFailed(f"extender {one.name}: {name} has no victims")
        return kept

    def _failed(self, one: ExtenderClient, verb: str, error: KoordError) -> None:
        """Go on without an extender that may fail; raise what it was otherwise."""
        if not one.settings.ignorable:
            raise error
        self._failures.warning("extender.skipped", verb=verb, error=str(error))


def _rejection(name: str, failed: Mapping[str, str], unresolvable: Mapping[str, str]) -> Status:
    if name in unresolvable:
        return Status.unresolvable(unresolvable[name]).of(EXTENDER)
    if name in failed:
        return Status.unschedulable(failed[name]).of(EXTENDER)
    return Status.unresolvable(_DROPPED).of(EXTENDER)


KEPT_PODS = 256  # that were read last


class FollowedObjects:
    """Pods are read when an extender is asked about them; nodes are followed, if one wants them."""

    def __init__(
        self, client: ApiClient, informers: Informers, extenders: Sequence[Extender]
    ) -> None:
        """It is made before informers are started."""
        self._client = client
        self._pods: OrderedDict[str, tuple[ClusterPod, bytes]] = OrderedDict()  # by uid
        self._encoded: dict[str, tuple[object, bytes]] = {}  # by name; of which object
        wanted = any(not one.node_cache_capable for one in extenders)
        self._informer = informers.informer(NODES) if wanted else None

    async def pod(self, pod: ClusterPod) -> bytes:
        """Return a pod.

        Raises:
            KoordError: it cannot be had, or is another one by now.
        """
        kept = self._pods.get(pod.uid)
        if kept is not None and kept[0] is pod:
            return kept[1]
        found = await self._client.get(PODS.object(pod.name, namespace=pod.namespace))
        uid = found.get("metadata", {}).get("uid")
        if uid != pod.uid:
            raise KoordError(f"pod {pod.key}: wanted uid {pod.uid}, found {uid!r:.80}")
        data = json.encode({"kind": "Pod", "apiVersion": "v1", **found})
        self._pods[pod.uid] = pod, data
        self._pods.move_to_end(pod.uid)
        if len(self._pods) > KEPT_PODS:
            self._pods.popitem(last=False)
        return data

    async def nodes(self, names: Sequence[str]) -> tuple[bytes, ...]:
        """Return those of the nodes that there are."""
        nodes = {} if self._informer is None else self._informer.objects
        found = ((name, nodes.get(name)) for name in names)
        return tuple(self._node(name, one) for name, one in found if one is not None)

    def _node(self, name: str, found: object) -> bytes:
        kept = self._encoded.get(name)
        if kept is None or kept[0] is not found:
            kept = self._encoded[name] = found, json.encode(found)
        return kept[1]
