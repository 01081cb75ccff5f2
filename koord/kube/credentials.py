"""Address and credentials of the API server: tokens, certificates and exec plugins."""

import asyncio
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Protocol

from koord.api.fields import Fields
from koord.kube.errors import ConfigError
from koord.util import documents
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord.util.filewatch import FileReadError, FileWatch
from koord.util.logs import LogState, get_logger

Material = Path | bytes
"""A certificate or key: a file that may be replaced at any time, or PEM text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecPlugin:
    """A program that prints credentials (client.authentication.k8s.io)."""

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None  # added to ours
    install_hint: str = ""
    cluster: Mapping[str, object] | None = None  # the facts of the cluster that it gets, if it asks


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiConfig:
    """One API server and one user. Without a CA the system's certificates decide."""

    server: str  # for example https://10.96.0.1:443
    source: str  # where this was found, for messages
    ca: Material | None = None
    verify: bool = True
    tls_server_name: str = ""  # "" for the name in server
    proxy_url: str = ""
    token: str = ""
    token_file: Path | None = None  # goes before token
    certificate: Material | None = None
    key: Material | None = None
    exec_plugin: ExecPlugin | None = None
    namespace: str = ""
    server_setting: str = "server"  # names of the settings in source, for messages
    verify_setting: str = "insecure-skip-tls-verify"

    def unverified(self) -> str:
        """The name of the setting for which nobody verifies the server; "": it is verified."""
        if not self.server.startswith("https:"):
            return self.server_setting
        return "" if self.verify else self.verify_setting


MAX_OUTPUT = 1 << 20  # bytes; a token and a certificate chain need a few thousand
TIMEOUT = 30.0  # seconds


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """A plugin's credential. expires is in Unix seconds; None means not before a rejection."""

    token: str
    certificate: bytes | None
    key: bytes | None
    expires: float | None


async def run_plugin(
    plugin: ExecPlugin, environment: Mapping[str, str], *, timeout: float = TIMEOUT
) -> ExecCredential:
    """Run the plugin, without a shell and off the event loop, and return what it printed.

    timeout is in real seconds: another program knows no other.

    Raises:
        ConfigError: it cannot be started, fails, takes too long, or prints something else.
    """
    env = {**environment, **(plugin.env or {}), "KUBERNETES_EXEC_INFO": _exec_info(plugin)}
    output = await asyncio.to_thread(_run, plugin, env, timeout)
    try:
        return _parse(documents.decode(output, plugin.command), plugin)
    except InvalidObject as err:
        raise ConfigError(plugin.command, wanted="an ExecCredential", found=str(err)) from err


def _exec_info(plugin: ExecPlugin) -> str:
    spec: dict[str, object] = {"interactive": False}
    if plugin.cluster is not None:
        spec["cluster"] = plugin.cluster
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return json.dumps(info, separators=(",", ":"))


def _parse(found: object, plugin: ExecPlugin) -> ExecCredential:
    fields = Fields(found, plugin.command)
    version = fields.text("apiVersion")
    if fields.text("kind") != "ExecCredential" or version != plugin.api_version:
        raise InvalidObject(plugin.command, wanted=plugin.api_version, found=version)
    status = fields.nested("status")
    token = status.text("token")
    certificate, key = status.text("clientCertificateData"), status.text("clientKeyData")
    if bool(certificate) != bool(key) or not (token or certificate):
        raise InvalidObject(status.where, wanted="a token, or a certificate and its key", found="")
    return ExecCredential(
        token,
        certificate.encode() or None,
        key.encode() or None,
        _unix_seconds(status.text("expirationTimestamp"), status),
    )


def _unix_seconds(text: str, status: Fields) -> float | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.min  # noqa: DTZ901 - rejected below
    if moment.tzinfo is None:
        where = status.path("expirationTimestamp")
        raise InvalidObject(where, wanted="a time in RFC 3339", found=text)
    return moment.timestamp()


def _run(plugin: ExecPlugin, env: Mapping[str, str], timeout: float) -> bytes:
    try:
        process = subprocess.Popen(  # noqa: S603 - the administrator chose it, and no shell reads it
            [plugin.command, *plugin.args],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that what it started ends with it
        )
    except OSError as err:
        hint = plugin.install_hint or "install it, or correct users[].user.exec.command"
        found = err.strerror or str(err)
        raise ConfigError(plugin.command, wanted="an exec plugin", found=found, hint=hint) from err
    with process:
        try:
            return _finish(plugin, process, time.monotonic() + timeout)
        finally:
            _kill_group(process)


def _finish(plugin: ExecPlugin, process: subprocess.Popen[bytes], end: float) -> bytes:
    assert process.stdout is not None  # noqa: S101 - for the type checker
    assert process.stderr is not None  # noqa: S101
    try:
        output, complaint = _read_both(process.stdout, process.stderr, end)
        if len(output) > MAX_OUTPUT:
            found = f"more than {MAX_OUTPUT} bytes"
            raise ConfigError(plugin.command, wanted="an ExecCredential", found=found)
        code = process.wait(max(end - time.monotonic(), 0.01))
    except (TimeoutError, subprocess.TimeoutExpired) as err:
        raise ConfigError(plugin.command, wanted="credentials in time", found="silence") from err
    if code != 0:
        said = complaint.decode(errors="replace").strip()
        raise ConfigError(plugin.command, wanted="exit code 0", found=f"{code}: {said[:1000]}")
    return output


def _read_both(stdout: IO[bytes], stderr: IO[bytes], end: float) -> tuple[bytes, bytes]:
    """Read until both are closed, or the first says more than MAX_OUTPUT."""
    found = {stdout: bytearray(), stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for file in found:
            selector.register(file, selectors.EVENT_READ)
        while selector.get_map() and len(found[stdout]) <= MAX_OUTPUT:
            ready = selector.select(end - time.monotonic())
            if not ready or time.monotonic() > end:
                raise TimeoutError
            for key, _ in ready:
                file = stdout if key.fileobj is stdout else stderr
                piece = os.read(key.fd, 65536)
                if not piece:
                    selector.unregister(file)
                elif len(found[file]) <= MAX_OUTPUT:  # what is beyond is read, but not kept
                    found[file] += piece
    return bytes(found[stdout]), bytes(found[stderr])


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # nothing of it is left


MAX_TOKEN_BYTES = 1 << 20
REREAD_INTERVAL = 60.0  # seconds; for file systems on which a change cannot be seen
RENEW_BEFORE = 10.0  # seconds before credentials of a plugin expire
# Seconds that they count at least, unless they are rejected: by a clock that is an hour fast they
# have always expired, and a plugin would run for each request.
MIN_VALIDITY = 60.0

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
        if self._clock.monotonic() - self._read_at >= REREAD_INTERVAL:
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
    """Credentials of an exec plugin, which runs again when they expire or are rejected."""

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
        if found.expires is None or self._clock.monotonic() - self._ran_at < MIN_VALIDITY:
            return False
        return self._clock.wall() >= found.expires - RENEW_BEFORE
