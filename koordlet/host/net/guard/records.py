"""What a helper leaves for the next one: changes that are not confirmed, and those rolled back.

A JSON file in a directory that only root can change. It is of one boot: traffic control ends with
the kernel. What cannot be used counts as nothing, with a warning.
"""

import fcntl
import json
import os
from dataclasses import asdict

import structlog

from koord.api.decoding.fields import Fields
from koord.util.documents import decode_line
from koord.util.errors import InvalidObject, KoordError
from koord.util.owneddir import OwnedDirectory
from koordlet.host.net.guard.probation import LIMIT, GuardState, Note, Probation
from koordlet.host.net.tc.names import is_interface_name
from koordlet.host.net.tc.tree import is_tree

VERSION = 1
MOST_BYTES = 16 << 20
_FILE, _LOCK = "changes.json", "lock"
_LONGEST_TEXT = 400

log = structlog.get_logger("koordlet.network")


def encode_state(state: GuardState, boot: str) -> bytes:
    """Return the content of the file."""
    document = {
        "version": VERSION,
        "boot": boot,
        "changes": [{"interface": k, **_change(v)} for k, v in sorted(state.probations.items())],
        "notes": [{"interface": k, **asdict(v)} for k, v in sorted(state.notes.items())],
    }
    return json.dumps(document).encode() + b"\n"


def _change(probation: Probation) -> dict[str, object]:
    return {
        "identity": probation.identity,
        "wanted": probation.wanted,
    }


def decode_state(data: bytes, boot: str, now: float) -> GuardState:
    """Return what a file says; changes are on probation anew, from now on.

    Raises:
        InvalidObject: it is no such file, or of another version.
    """
    fields = Fields(decode_line(data, _FILE), _FILE)
    if fields.raw.get("version") != VERSION:
        raise InvalidObject(_FILE, wanted=f"version {VERSION}", found=fields.raw.get("version"))
    notes = dict(_note_of(each) for each in fields.objects("notes"))
    if fields.text("boot") != boot:
        return GuardState({}, notes)
    return GuardState(dict(_probation_of(each, now) for each in fields.objects("changes")), notes)


def _probation_of(fields: Fields, now: float) -> tuple[str, Probation]:
    identity = fields.raw.get("identity")
    wanted = fields.required_text("wanted")
    if isinstance(identity, bool) or not isinstance(identity, int) or identity < 1:
        raise InvalidObject(fields.path("identity"), wanted="a number from 1", found=identity)
    if not is_tree(wanted):
        raise InvalidObject(fields.path("wanted"), wanted="a tree", found=wanted[:60])
    return _interface(fields), Probation(identity, wanted, now + LIMIT)


def _note_of(fields: Fields) -> tuple[str, Note]:
    wanted, at, why = (fields.required_text(key) for key in ("wanted", "at", "why"))
    if not is_tree(wanted) or max(len(at), len(why)) > _LONGEST_TEXT or not at.isascii():
        raise InvalidObject(fields.path("wanted"), wanted="a tree and its end", found=wanted[:60])
    return _interface(fields), Note(wanted, at, why)


def _interface(fields: Fields) -> str:
    name = fields.required_text("interface")
    if not is_interface_name(name):
        raise InvalidObject(fields.path("interface"), wanted="a network interface", found=name)
    return name


class RecordFile:
    """The file, for one helper at a time."""

    def __init__(self, directory: OwnedDirectory, boot: str) -> None:
        self._file = directory / _FILE
        self._boot = boot
        self._lock = (directory / _LOCK).open(os.O_RDWR | os.O_CREAT)

    def hold(self) -> bool:
        """Take the file for this process, until it ends; False: another helper has it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def load(self, now: float) -> GuardState:
        """Return what the last helper left."""
        try:
            data = self._file.read(MOST_BYTES)
            return GuardState() if data is None else decode_state(data, self._boot, now)
        except (KoordError, OSError) as err:
            log.warning("network.record_unusable", error=str(err))
            return GuardState()

    def save(self, state: GuardState) -> None:
        """Replace the file. Raises KoordError, OSError."""
        self._file.write(encode_state(state, self._boot))
