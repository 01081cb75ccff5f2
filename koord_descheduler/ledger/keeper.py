"""Keeps the ledger in the API, so that the next leader goes on with it: one ConfigMap."""

from typing import Any

from koord.kube.client import CONFIG_MAPS, ApiClient
from koord.kube.errors import Conflict, KubeError, NotFound
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord_descheduler.ledger.entries import from_text, to_text
from koord_descheduler.ledger.ledger import Ledger, LedgerMetrics

NAME = "koord-descheduler-ledger"
KEY, ASIDE = "ledger.json", "ledger.json.malformed"
INTERVAL = 10.0  # seconds between two looks at the cluster, and two writes at least
_MAX_ASIDE = 32 << 10  # characters
_TRIES = 3  # of a write that finds a newer version

log = get_logger("koord_descheduler.ledger")


class LedgerStore:
    """Reads the ledger when leadership begins, has it observe, and writes what has changed.

    A write replaces only the version that was read; when another leader was faster, both ledgers
    become one. Without the API the ledger goes on in memory.
    """

    def __init__(
        self,
        ledger: Ledger,
        client: ApiClient,
        namespace: str,
        clock: Clock,
        metrics: LedgerMetrics,
    ) -> None:
        self._ledger = ledger
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._metrics = metrics
        self._found: dict[str, Any] | None = None  # the ConfigMap as it was read or written
        self._loaded = False
        self._away = LogState(log)
        self._error = ""  # of the last attempt; "": it went well

    def health(self) -> PartHealth:
        """Degraded: the ledger is only in memory."""
        return PartHealth(HealthStatus.DEGRADED, self._error) if self._error else OK

    async def load(self) -> None:
        """Take over what is in the API; what cannot be read now is read before the first write."""
        try:
            await self._load()
        except KubeError as err:
            self._failed(err)

    async def run(self, stop: Stop) -> None:
        """Observe and write until stop, and once more then."""
        async for _ in stop.every(INTERVAL):
            self._ledger.observe(self._clock.wall())
            await self.save()
        await self.save()

    async def save(self) -> None:
        """Write the ledger if it has changed since."""
        if not self._ledger.changed and self._loaded:
            return
        try:
            if not self._loaded:
                await self._load()
            if self._ledger.changed:
                await self._write()
        except KubeError as err:
            self._metrics.writes.labels("failed").inc()
            self._failed(err)
        else:
            self._error = ""
            self._away.ended("ledger.written")

    async def _load(self) -> None:
        path = CONFIG_MAPS.object(NAME, namespace=self._namespace)
        try:
            self._found = await self._client.get(path)
        except NotFound:
            self._found = None
        text = _data(self._found).get(KEY)
        if text:
            try:
                self._ledger.take_over(from_text(text))
            except InvalidObject as err:
                self._put_aside(text, err)
        self._loaded = True

    def _put_aside(self, text: str, err: InvalidObject) -> None:
        """Keep a malformed ledger under another key with the next write."""
        log.error("ledger.malformed", error=str(err), kept_as=ASIDE)
        assert self._found is not None  # noqa: S101 - the text was in it
        data = {**_data(self._found), ASIDE: text[:_MAX_ASIDE]}
        self._found = {**self._found, "data": data}

    async def _write(self) -> None:
        for left in reversed(range(_TRIES)):
            self._ledger.changed = False
            try:
                self._found = await self._store(to_text(self._ledger.document()))
            except (Conflict, NotFound) as err:
                self._ledger.changed = True
                self._metrics.writes.labels("conflict").inc()
                if not left:
                    raise
                log.info("ledger.conflict", error=str(err))
                await self._load()
            except BaseException:
                self._ledger.changed = True
                raise
            else:
                self._metrics.writes.labels("ok").inc()
                return

    async def _store(self, text: str) -> dict[str, Any]:
        """Create or replace the ConfigMap; return it as stored. Raises Conflict, NotFound."""
        if self._found is None:
            body = {
                "apiVersion": CONFIG_MAPS.api_version,
                "kind": "ConfigMap",
                "metadata": {"name": NAME, "namespace": self._namespace},
                "data": {KEY: text},
            }
            return await self._client.create(CONFIG_MAPS.collection(self._namespace), body)
        body = {**self._found, "data": {**_data(self._found), KEY: text}}
        path = CONFIG_MAPS.object(NAME, namespace=self._namespace)
        return await self._client.replace(path, body)

    def _failed(self, err: KubeError) -> None:
        self._error = f"the ledger of evictions is only in memory: {err}"
        self._away.failed("ledger.write_failed", error=str(err))


def _data(found: dict[str, Any] | None) -> dict[str, str]:
    data = (found or {}).get("data")
    return (
        {key: text for key, text in data.items() if isinstance(text, str)}
        if isinstance(data, dict)
        else {}
    )
