"""Credentials for the API server, renewed from their source."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from koord.kube.access.config import ApiConfig, ExecPlugin, Material
from koord.kube.access.execplugin import ExecCredential, run_plugin
from koord.kube.errors import ConfigError
from koord.util.clock import Clock
from koord.util.filewatch import FileReadError, FileWatch
from koord.util.logs import LogState, get_logger

MAX_TOKEN_BYTES = 1 << 20
READ_AGAIN_AFTER = 60.0  # seconds; for file systems on which a change cannot be seen
RENEW_BEFORE = 10.0  # seconds before credentials of a plugin expire
# Seconds that they count at least, unless they are refused: by a clock that is an hour fast they
# have always expired, and a plugin would run for each request.
LEAST_USE = 60.0

log = get_logger("koord.kube")


@dataclass(frozen=True, slots=True)
class Credential:
    """A bearer token, a client certificate with its key, both or neither."""

    token: str = ""
    certificate: Material | None = None
    key: Material | None = None


class Credentials(Protocol):
    """A source of credentials."""

    async def current(self) -> Credential:
        """Return the credentials for the server now. Raises ConfigError when there are none."""

    def refused(self) -> None:
        """The server did not accept the last ones: the next call of current renews them."""


def credentials_of(
    config: ApiConfig, clock: Clock, environment: Mapping[str, str] | None = None
) -> Credentials:
    """Return the credentials that a configuration names."""
    if config.exec_plugin is not None:
        env = os.environ if environment is None else environment
        return PluginCredentials(config.exec_plugin, clock, env)
    if config.token_file is not None:
        return FileCredentials(config.token_file, config, clock)
    return FixedCredentials(Credential(config.token, config.certificate, config.key))


class FixedCredentials:
    """Credentials that stand in the configuration. Certificate files are watched elsewhere."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def current(self) -> Credential:
        return self._credential

    def refused(self) -> None:
        return  # there are no others


class FileCredentials:
    """A token in a file that others replace, as the kubelet does for service accounts."""

    def __init__(self, path: Path, config: ApiConfig, clock: Clock) -> None:
        self._watch = FileWatch(path)
        self._config = config
        self._clock = clock
        self._credential: Credential | None = None
        self._read_at = 0.0
        self._trouble = LogState(log)

    async def current(self) -> Credential:
        if self._clock.monotonic() - self._read_at >= READ_AGAIN_AFTER:
            self._watch.again()
        if self._watch.changed() or self._credential is None:
            self._credential = self._read()
        return self._credential

    def refused(self) -> None:
        self._watch.again()

    def _read(self) -> Credential:
        """Read the token; while that fails, go on with the last one."""
        self._read_at = self._clock.monotonic()
        try:
            token = _token(self._watch.read(MAX_TOKEN_BYTES))
        except (FileReadError, ValueError) as err:
            self._watch.again()
            return self._last(err)
        self._trouble.ended("token.readable", path=str(self._watch.path))
        return Credential(token, self._config.certificate, self._config.key)

    def _last(self, err: Exception) -> Credential:
        if self._credential is not None:
            self._trouble.failed("token.unreadable", error=str(err))
            return self._credential
        if self._config.token:
            return Credential(self._config.token, self._config.certificate, self._config.key)
        raise ConfigError(self._watch.path, wanted="a bearer token", found=str(err)) from err


def _token(data: bytes) -> str:
    token = data.decode("ascii").strip()
    if not token or not token.isprintable():
        raise ValueError("no token")
    return token


class PluginCredentials:
    """Credentials of an exec plugin, which runs again when they expire or are refused."""

    def __init__(self, plugin: ExecPlugin, clock: Clock, environment: Mapping[str, str]) -> None:
        self._plugin = plugin
        self._clock = clock
        self._environment = environment
        self._found: ExecCredential | None = None
        self._ran_at = 0.0  # monotonic
        self._one_at_a_time = asyncio.Lock()

    async def current(self) -> Credential:
        async with self._one_at_a_time:
            if self._found is None or self._expired(self._found):
                self._found = await run_plugin(self._plugin, self._environment)
                self._ran_at = self._clock.monotonic()
            return Credential(self._found.token, self._found.certificate, self._found.key)

    def refused(self) -> None:
        self._found = None

    def _expired(self, found: ExecCredential) -> bool:
        if found.expires is None or self._clock.monotonic() - self._ran_at < LEAST_USE:
            return False
        return self._clock.wall() >= found.expires - RENEW_BEFORE
