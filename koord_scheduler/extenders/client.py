"""One HTTP extender, as it is configured."""

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from koord.cluster.facts import ClusterPod
from koord.kube.access.config import ApiConfig, Material
from koord.kube.deadline import Deadline
from koord.kube.errors import KubeError
from koord.kube.transport import Call, Limits, Transport
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, KoordError
from koord_scheduler.config.v1 import Extender, ExtenderTLSConfig
from koord_scheduler.extenders import messages
from koord_scheduler.extenders.messages import (
    Arguments,
    BindArguments,
    FilterAnswer,
    NodeVictims,
)

LARGEST_ANSWER = 64 << 20  # bytes: 5,000 nodes that travel themselves
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
            answer_bytes=LARGEST_ANSWER,
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

    async def filter(self, asked: Arguments) -> FilterAnswer:
        """Return which of the nodes pass.

        Raises:
            ExtenderFailed: it says that it failed, or there was no such answer.
        """
        verb = self.settings.filter_verb
        body = messages.write_arguments(asked)
        answer = await self._ask(verb, body, messages.read_filter_answer)
        if answer.error:
            raise ExtenderFailed(f"extender {self.name}: {answer.error}")
        if self.settings.node_cache_capable:
            sent = frozenset(asked.names)
            others = [name for name in answer.names or () if name not in sent]
            if others:
                raise ExtenderFailed(
                    f"extender {self.name}: claims a filtered node: {others[0][:253]} which is not "
                    "found in the input node list"
                )
        return answer

    async def prioritize(self, asked: Arguments) -> Mapping[str, int]:
        """Return scores of nodes, from 0 to 10. Raises ExtenderFailed."""
        verb = self.settings.prioritize_verb
        return await self._ask(verb, messages.write_arguments(asked), messages.read_priorities)

    async def preempt(
        self,
        pod: bytes,
        victims: Mapping[str, NodeVictims],
        whole: Mapping[str, bytes] | None,
    ) -> Mapping[str, NodeVictims]:
        """Return the candidates that it leaves. Raises ExtenderFailed."""
        body = messages.write_preempt(pod, victims, whole)
        return await self._ask(self.settings.preempt_verb, body, messages.read_preempt_answer)

    async def bind(self, asked: BindArguments) -> None:
        """Have it bind a pod.

        Raises:
            ExtenderFailed: it did not, or there was no answer: then it may have.
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
