"""Writes kernel values, skips those in force, and knows what to put back. For one thread."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from koordlet.executor.claim import ClaimState, Key
from koordlet.executor.target import Level
from koordlet.executor.wish import RELEASE, Landed, Wish
from koordlet.host.cpuvalues import shares_to_weight, weight_to_shares
from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.host import Host
from koordlet.host.resource import Resource
from koordlet.host.resources import CPU_PERIOD, CPU_QUOTA, CPU_SHARES
from koordlet.util.cpulist import format_cpulist


@dataclass(slots=True)
class _Entry:
    original: Any
    value: Any


class Writer:
    """Brings wishes into force, and puts back what was there before."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._entries: dict[Key, _Entry] = {}

    def apply(self, wishes: Sequence[Wish]) -> list[Landed]:
        """Return what became of each. Never raises for what a kernel does."""
        return [self._apply(wish) for wish in wishes]

    def _apply(self, wish: Wish) -> Landed:
        key = wish.key
        entry = self._entries.get(key)
        try:
            if wish.value is RELEASE:
                return self._release(key, entry)
            found = self._read(key)
            if entry is None:
                original = found if wish.original is None else wish.original
                entry = self._entries[key] = _Entry(original, found)
            wrote = not self._same(key.resource, found, wish.value)
            if wrote:
                self._write(key, wish.value)
            entry.value = wish.value
            return Landed(ClaimState.IN_FORCE, wish.value, entry.original, wrote=wrote)
        except Unsupported as err:
            return Landed(ClaimState.UNSUPPORTED, message=str(err))
        except Vanished as err:
            self._entries.pop(key, None)
            return Landed(ClaimState.GONE, message=str(err))
        except KernelFileError as err:
            original = entry.original if entry else None
            return Landed(ClaimState.FAILED, original=original, message=str(err))

    def _release(self, key: Key, entry: _Entry | None) -> Landed:
        if entry is None:
            return Landed(ClaimState.GONE)
        found = self._read(key)
        ours = self._same(key.resource, found, entry.value)
        wrote = ours and not self._same(key.resource, found, entry.original)
        if wrote:
            self._write(key, entry.original)
        del self._entries[key]
        return Landed(ClaimState.GONE, entry.original, wrote=wrote)

    def _read(self, key: Key) -> Any:
        return self._host.read(key.resource, _group(key))

    def _write(self, key: Key, value: Any) -> None:
        path = self._host.path(key.resource, _group(key))
        text = self._text(key.resource, value)
        if key.resource is CPU_QUOTA and self._host.version(CPU_QUOTA) == 2:
            text = f"{text} {self._host.read(CPU_PERIOD, _group(key))}"  # one file has both
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_TRUNC)
            try:
                os.write(fd, f"{text}\n".encode())
            finally:
                os.close(fd)
        except OSError as err:
            raise KernelFileError.from_os_error(path, err) from err

    def _text(self, resource: Resource[Any], value: Any) -> str:
        version = self._host.version(resource)
        if isinstance(value, set | frozenset):
            return format_cpulist(value)
        if resource is CPU_SHARES and version == 2:
            return str(shares_to_weight(value))
        return "max" if version == 2 and value == -1 else str(value)

    def _same(self, resource: Resource[Any], found: Any, value: Any) -> bool:
        if resource is CPU_SHARES and self._host.version(resource) == 2:
            return bool(found == weight_to_shares(shares_to_weight(value)))
        return bool(found == value)


def _group(key: Key) -> str:
    return "" if key.target.level is Level.NODE else key.target.place
