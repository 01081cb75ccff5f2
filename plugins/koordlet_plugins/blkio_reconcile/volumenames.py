"""The volumes that claims are bound to, asked of the API server where nothing else shows them."""

from collections.abc import Iterable
from urllib.parse import quote

from koord.api.decoding.fields import Fields
from koordlet.plugin import Client, KoordError
from koordlet_plugins.blkio_reconcile.devices import ClaimKey, Unclear

RETRY = 30.0  # seconds after which a claim that could not be read, or is not bound, is asked again


class VolumeNames:
    """Remembers the volume of each claim: a claim that is bound stays so."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asked: dict[ClaimKey, float] = {}  # when, by the monotonic clock
        self.names: dict[ClaimKey, str] = {}
        self.problem = ""  # of the latest request that failed; "" for none

    async def look_up(self, wanted: Iterable[Unclear], now: float) -> None:
        """Ask for the volumes of these claims, and forget all others."""
        claims = {one.key: one for one in wanted}
        self._asked = {key: at for key, at in self._asked.items() if key in claims}
        if self.names.keys() - claims.keys():
            self.names = {key: name for key, name in self.names.items() if key in claims}
        if not claims:
            self.problem = ""
        for key, one in claims.items():
            if key not in self.names and now - self._asked.get(key, float("-inf")) >= RETRY:
                self._asked[key] = now
                await self._ask(one)

    async def _ask(self, one: Unclear) -> None:
        claim = quote(one.key[1], safe="")
        path = f"/api/v1/namespaces/{quote(one.namespace, safe='')}/persistentvolumeclaims/{claim}"
        try:
            found = await self._client.get(path)
            name = Fields(found, path).nested("spec").text("volumeName")
        except KoordError as err:
            self.problem = f"volumes of claims (the component volume-claims grants that): {err}"
            return
        self.problem = ""
        if name:
            self.names = self.names | {one.key: name}
