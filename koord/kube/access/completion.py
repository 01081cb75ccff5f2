"""Objects that are followed by their metadata, and fetched when more than their status changes."""

from koord.kube.answers import Object
from koord.kube.client import ApiClient


class Completion:
    """Makes whole objects of metadata.

    The generation of an object counts the changes of its spec, so as long as that stays, what was
    fetched stays good. The status is the one of that time: for objects whose status is our own.

    Source: Kubernetes, API concepts, "Metadata-only fetches"; API conventions, "generation".
    """

    def __init__(self, client: ApiClient, path: str) -> None:
        """path: of the collection, of a kind without namespaces."""
        self._client = client
        self._path = path
        self._fetched: dict[str, Object] = {}  # by name

    async def complete(self, item: Object) -> Object:
        """Return the object whole, with the metadata given.

        Raises what ApiClient.get does; NotFound when it has gone meanwhile.
        """
        if item.get("kind") != "PartialObjectMetadata":
            return item  # from a server that sends objects whole
        name = str(item["metadata"].get("name", ""))
        known = self._fetched.get(name)
        if known is not None and _spec_id(known) == _spec_id(item) != ("", ""):
            return {**known, "metadata": item["metadata"]}
        self._fetched[name] = whole = await self._client.get(f"{self._path}/{name}")
        return whole

    def forget(self, item: Object) -> None:
        """Drop an object that was deleted."""
        self._fetched.pop(str(item["metadata"].get("name", "")), None)


def _spec_id(item: Object) -> tuple[str, str]:
    """The UID and generation: equal while the spec is the same. Empty where there is none."""
    metadata = item["metadata"]
    generation = str(metadata.get("generation", ""))
    return (str(metadata.get("uid", "")), generation) if generation else ("", "")
