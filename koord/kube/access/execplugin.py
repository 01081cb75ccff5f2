"""Exec plugins: programs of cloud providers and others that print credentials."""

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
from typing import IO

from koord.api.decoding.fields import Fields
from koord.kube.access.config import ExecPlugin
from koord.kube.errors import ConfigError
from koord.util import documents
from koord.util.errors import InvalidObject

MAX_OUTPUT = 1 << 20  # bytes; a token and a certificate chain need a few thousand
TIMEOUT = 30.0  # seconds


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """A plugin's credential. expires is in Unix seconds; None means not before we are refused."""

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
        moment = datetime.min  # noqa: DTZ901 - refused below
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
