"""Plugins that are kept out because they brought the daemon down or outgrew it."""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.logs import get_logger
from koord.util.owneddir import OwnedDirectory

MAX_BYTES = 1 << 20  # of the file

_UNUSABLE = (
    KoordError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError
)  # fmt: skip

log = get_logger("koordlet.qosmanager")


@dataclass(frozen=True, slots=True)
class Sentence:
    """Reason and time of keeping one version of a plugin out."""

    reason: str
    at: str  # RFC 3339, UTC
    version: str  # of the distribution; another version is let in again


class Quarantine:
    """The list, kept in `quarantine.json` of the run directory until the next boot.

    A plugin comes off when its gates are switched off, when its version changes, or by hand.
    """

    def __init__(self, directory: OwnedDirectory | None, boot_id: str, clock: Clock) -> None:
        """Load the list; one of another boot, or that cannot be read, counts as empty."""
        self._file = directory / "quarantine.json" if directory else None
        self._boot_id = boot_id
        self._clock = clock
        self._sentences = self._load()

    def get(self, plugin: str, version: str) -> Sentence | None:
        """The sentence of this version of a plugin; None: it may run."""
        sentence = self._sentences.get(plugin)
        return sentence if sentence is not None and sentence.version == version else None

    def add(self, plugin: str, version: str, reason: str) -> Sentence:
        """Keep this version of a plugin out."""
        at = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        sentence = Sentence(reason, at, version)
        self._sentences[plugin] = sentence
        log.error("plugin.quarantined", plugin=plugin, version=version, reason=reason)
        self._save()
        return sentence

    def clear(self, plugin: str) -> bool:
        """Let a plugin in again. Returns whether it was kept out."""
        if self._sentences.pop(plugin, None) is None:
            return False
        log.info("plugin.released", plugin=plugin)
        self._save()
        return True

    def _load(self) -> dict[str, Sentence]:
        if self._file is None:
            return {}
        try:
            data = self._file.read(MAX_BYTES)
            if data is None:
                return {}
            stored = json.loads(data)
            if stored["boot_id"] != self._boot_id:
                return {}
            return {name: Sentence(**fields) for name, fields in stored["plugins"].items()}
        except _UNUSABLE as err:
            log.warning("quarantine.dropped", path=str(self._file), error=repr(err))
            return {}

    def _save(self) -> None:
        if self._file is None:
            return
        plugins = {name: asdict(sentence) for name, sentence in sorted(self._sentences.items())}
        content = json.dumps({"boot_id": self._boot_id, "plugins": plugins}, indent=2)
        try:
            self._file.write(content.encode() + b"\n")
        except KoordError as err:
            log.error("quarantine.not_saved", error=str(err))  # noqa: TRY400 - the message says it all
