"""Client of this node's kubelet: pods, configuration, request metrics, and the agent's own pod."""

import asyncio
import base64
import binascii
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry, Histogram

from koord.api.node import AddressType, Node
from koord.api.pod import Pod, PodList, check_pod_list, pod_list, read_item
from koord.kube.credentials import ApiConfig, Credentials
from koord.kube.errors import BadResponse, NoAddress
from koord.kube.transport import (
    Call,
    Deadline,
    Limits,
    Object,
    Traffic,
    Transport,
    read_object,
    too_large,
)
from koord.util.clock import Clock
from koord.util.documents import EarlierItems, ListStream
from koord.util.errors import InvalidObject
from koord.util.filewatch import FileReadError, read_bounded
from koordlet import NAME

_VERB = {"/pods": "/pods/"}


class KubeletMetrics:
    """Duration of requests to the kubelet; name, labels and buckets are Koordinator's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "koordlet_kubelet_request_duration_seconds",
            "Time from a request to the kubelet until its answer began.",
            ["verb", "path", "code"],
            buckets=(0.001, 0.004, 0.016, 0.064, 0.256, 1.024, 4.096),
            registry=registry,
        )

    def observe(self, traffic: Traffic) -> None:
        """Count one attempt that is over, if there was a response."""
        if traffic.status:
            path = _VERB.get(traffic.call.path, traffic.call.path)
            self.seconds.labels("get", path, str(traffic.status)).observe(traffic.seconds)


MAX_TOKEN_BYTES = 1 << 20


def own_pod_uid(config: ApiConfig) -> str:
    """Return the uid of the pod we run in; "" when that is not known, for example on a host."""
    if config.token_file is None:
        return pod_uid(config.token)
    try:
        return pod_uid(read_bounded(config.token_file, MAX_TOKEN_BYTES).decode("ascii", "replace"))
    except FileReadError:
        return ""


def pod_uid(token: str) -> str:
    """Return the uid of the pod that a token is bound to; "" when it is bound to none.

    The signature is not checked: it is our own token, and the API server will.

    Source: Kubernetes, bound service account tokens; claim kubernetes.io.
    """
    _, _, rest = token.partition(".")
    payload, _, _ = rest.partition(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return ""  # no JWT: a static token, or one of another kind
    uid = _nested_value(_nested_value(_nested_value(claims, "kubernetes.io"), "pod"), "uid")
    return uid if isinstance(uid, str) else ""


def _nested_value(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, Mapping) else None


PODS, CONFIGZ = "/pods", "/configz"  # nodes/pods and nodes/configz to RBAC, never nodes/proxy
MAX_BYTES = 16 << 20  # of a response but that with the pods
MAX_POD_BYTES = 10 << 20
"""Limit of one pod. etcd stores 1.5 MiB, in which JSON writes one byte as six (\\u003c for <)."""
MAX_LIST_BYTES = 1 << 30  # of all pods: 110 of the largest that the API server takes
BYTES_A_SECOND = 4 << 20  # that a large list comes and is read with at least
_AT_ONCE = 1 << 20  # bytes that are read by one call in a thread


@dataclass(frozen=True, kw_only=True, slots=True)
class KubeletOptions:
    """Connection to the kubelet. Without a CA of its own, that of the API server counts."""

    address_type: AddressType = AddressType.INTERNAL_IP  # which address of the Node
    timeout: float = 3.0  # seconds for a whole response, connection included
    ca_file: Path | None = None
    insecure: bool = False  # plain HTTP on the read-only port, without credentials
    read_only_port: int = 10255


class KubeletClient:
    """Queries the kubelet at the Node's address, with the agent's API server credentials.

    One request at a time, each to the address that the Node has then. Calls raise what
    Transport.exchange does, and NoAddress while the Node has no address of the kubelet.
    """

    def __init__(
        self,
        api: ApiConfig,
        node: Callable[[], Node | None],
        clock: Clock,
        options: KubeletOptions | None = None,
        *,
        credentials: Credentials | None = None,
        observe: Callable[[Traffic], None] | None = None,
    ) -> None:
        """Make a client; credentials, when given, replace those of api."""
        self._api = api
        self._node = node
        self._clock = clock
        self._options = options or KubeletOptions()
        self._credentials = credentials
        self._observe = observe
        self._turn = asyncio.Lock()
        self._url = ""
        self._transport: Transport | None = None
        self._earlier: EarlierItems | None = None  # pods of the last good answer

    async def pods(self) -> PodList:
        """Return all pods of this node, static and finished ones included, in order of their uids.

        The kubelet itself lists them in another order each time.
        """
        reader, call = PodsReader(self._earlier), Call("GET", PODS)
        async with self._turn, Deadline(self._clock, call.where) as deadline:
            transport = await self._current()
            deadline.enter("the whole answer", self._options.timeout)
            begun = self._clock.monotonic()
            async with transport.stream(call, lambda: self._options.timeout) as pieces:
                waiting, received = bytearray(), 0
                async for piece in pieces:
                    waiting += piece
                    received += len(piece)
                    if received > MAX_LIST_BYTES:
                        raise too_large(call.where, MAX_LIST_BYTES)
                    if len(waiting) >= _AT_ONCE:
                        deadline.pause()
                        await asyncio.to_thread(reader.feed, bytes(waiting))
                        waiting.clear()
                        left = begun + self._seconds(received) - self._clock.monotonic()
                        deadline.enter("the whole answer", max(left, 0.0))
            found = await asyncio.to_thread(reader.end, bytes(waiting))
        self._earlier = reader.items_read
        return found

    def _seconds(self, received: int) -> float:
        """Seconds that a response may take of which so many bytes have come."""
        return self._options.timeout + received / BYTES_A_SECOND

    async def configz(self) -> Object:
        """Return the configuration in force, a KubeletConfiguration without apiVersion and kind."""
        response = await read_object(await self._get(CONFIGZ), f"GET {CONFIGZ}")
        found = response.get("kubeletconfig")
        if not isinstance(found, dict):
            wanted = "an object with a kubeletconfig"
            raise BadResponse(f"GET {CONFIGZ}", wanted=wanted, found=f"{found!r:.80}")
        return found

    async def close(self) -> None:
        """Close the connection."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    async def _get(self, path: str) -> bytes:
        call = Call("GET", path)
        async with self._turn, Deadline(self._clock, call.where) as deadline:
            transport = await self._current()
            deadline.enter("the whole answer", self._options.timeout)
            return await transport.exchange(call)

    async def _current(self) -> Transport:
        """The transport to the kubelet's present address."""
        url = kubelet_url(self._node(), self._options)
        if self._transport is None or url != self._url:
            await self.close()
            self._url, self._transport = url, self._connected(url)
        return self._transport

    def _connected(self, url: str) -> Transport:
        return Transport(
            kubelet_config(self._api, url, self._options),
            self._clock,
            limits=Limits(response_bytes=MAX_BYTES, qps=0),
            credentials=None if self._options.insecure else self._credentials,
            observe=self._observe,
            user_agent=NAME,
        )


class PodsReader:
    """Reads a PodList as it comes; the order of the pods is not that of the list.

    Pods are decoded one by one, so that only one is in memory with all that is not kept of it; one
    whose text is that of an earlier answer is not decoded again.
    """

    def __init__(self, earlier: EarlierItems | None = None) -> None:
        """earlier: items_read of the reader of the answer before."""
        self._where = f"GET {PODS}"
        self._stream = ListStream(
            self._where,
            lambda item: read_item(item, "a pod without a name"),
            item_bytes=MAX_POD_BYTES,
            earlier=earlier,
        )

    @property
    def items_read(self) -> EarlierItems:
        """The pods of this answer by their texts, once it has ended."""
        return self._stream.items_read

    def feed(self, data: bytes) -> None:
        """Read the pods that the next bytes complete. Raises BadResponse: this is no PodList."""
        try:
            self._stream.feed(data)
        except InvalidObject as err:
            raise self._bad(err) from err

    def end(self, data: bytes = b"") -> PodList:
        """Return the pods, with those of the last bytes. Raises BadResponse: it was no PodList."""
        self.feed(data)
        try:
            found = self._stream.end()
            check_pod_list(found)
        except InvalidObject as err:
            raise self._bad(err) from err
        pods, problems = pod_list(cast("list[Pod | InvalidObject]", found.get("items") or []))
        return pods, tuple(sorted(problems, key=str))

    def _bad(self, err: InvalidObject) -> BadResponse:
        return BadResponse(self._where, wanted="a list of pods", found=str(err))


def kubelet_url(node: Node | None, options: KubeletOptions) -> str:
    """Return the URL of the node's kubelet.

    Raises:
        NoAddress: the Node is not known, or has no such address.
    """
    if node is None:
        raise NoAddress("kubelet: wanted the Node with its addresses, found none yet")
    kind = options.address_type
    host = next((found.address for found in node.addresses if found.type == kind), "")
    port = options.read_only_port if options.insecure else node.kubelet_port
    if not host or not port:
        found = ", ".join(sorted({found.type for found in node.addresses})) or "no address"
        raise NoAddress(
            f"kubelet of {node.name}: wanted an address of type {kind} and the kubelet's port in "
            f"the Node's status, found {found} and port {port or 'none'}; "
            "see --kubelet-preferred-address-type"
        )
    scheme = "http" if options.insecure else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def kubelet_config(api: ApiConfig, url: str, options: KubeletOptions) -> ApiConfig:
    """Return the connection settings for the kubelet, derived from those for the API server."""
    if options.insecure:
        flag = "--kubelet-insecure-tls"
        return ApiConfig(
            server=url, source=flag, verify=False, server_setting=flag, verify_setting=flag
        )
    if options.ca_file is not None:
        api = dataclasses.replace(api, ca=options.ca_file, verify=True)
    return dataclasses.replace(api, server=url, tls_server_name="", proxy_url="")
