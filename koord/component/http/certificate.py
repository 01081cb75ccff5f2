"""The certificate that the server shows, followed on disk."""

import asyncio
import ssl
from pathlib import Path

from koord.util.errors import KoordError
from koord.util.filewatch import FileReadError, FileWatch
from koord.util.health import OK, PartHealth, Status
from koord.util.keypair import MAX_PEM_BYTES, load_pair
from koord.util.logs import get_logger
from koord.util.stop import Stop

INTERVAL = 10.0  # seconds between two looks at the files

log = get_logger("koord.server")


class CertificateError(KoordError):
    """A certificate and its key cannot be used. The daemon does not start without them."""


class ServingCertificate:
    """A TLS context whose new connections show what the two files hold now.

    While these cannot be used, as between the two steps of a rotation, the last pair stays.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read the files.

        Raises:
            CertificateError: they cannot be used; the message says why.
        """
        self._certificate, self._key = FileWatch(certificate), FileWatch(key)
        self._problem = ""
        self.context = _server_context()
        self._changed()
        load_pair(self.context, *self._read())

    async def run(self, stop: Stop) -> None:
        """Follow the files until stop."""
        async for _ in stop.every(INTERVAL):
            if self._changed() or self._is_gone():
                await self._renew()

    def health(self) -> PartHealth:
        """Degraded while the files cannot be used."""
        return PartHealth(Status.DEGRADED, self._problem) if self._problem else OK

    def _changed(self) -> bool:
        return any([self._certificate.changed(), self._key.changed()])

    def _is_gone(self) -> bool:
        return not (self._certificate.path.exists() and self._key.path.exists())

    async def _renew(self) -> None:
        try:
            pair = await asyncio.to_thread(self._read)
        except CertificateError as err:
            self._refuse(err)
        else:
            load_pair(self.context, *pair)
            self._problem = ""
            log.info("certificate.renewed", path=str(self._certificate.path))

    def _refuse(self, err: CertificateError) -> None:
        self._certificate.again()  # the key may follow
        if str(err) != self._problem:
            log.error("certificate.unusable", error=str(err), note="the last good pair stays")
        self._problem = str(err)

    def _read(self) -> tuple[bytes, bytes]:
        """Return both files, tried on a context of their own.

        The one in use would be left with half a pair.
        """
        paths = f"{self._certificate.path} and {self._key.path}"
        try:
            pair = self._certificate.read(MAX_PEM_BYTES), self._key.read(MAX_PEM_BYTES)
            load_pair(_server_context(), *pair)
        except (FileReadError, ssl.SSLError, ValueError) as err:
            raise CertificateError(
                f"{paths}: wanted a certificate and its key in PEM, found {_said(err)}; "
                "correct --tls-cert-file and --tls-private-key-file"
            ) from err
        return pair


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _said(err: Exception) -> str:
    return str(err.reason or err) if isinstance(err, ssl.SSLError) else str(err)
