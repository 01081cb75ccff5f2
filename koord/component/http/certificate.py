"""The certificate that the server shows, followed on disk."""

import asyncio
import ssl
from pathlib import Path

from koord.util.errors import KoordError
from koord.util.filewatch import FileReadError, FileWatch
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.keypair import MAX_PEM_BYTES, load_pair
from koord.util.logs import get_logger
from koord.util.stop import Stop

INTERVAL = 10.0  # seconds between two looks at the files

Pems = tuple[bytes, bytes, bytes | None]  # certificate, key, CAs of clients

log = get_logger("koord.server")


class CertificateError(KoordError):
    """A certificate and its key cannot be used. The daemon does not start without them."""


class ServingCertificate:
    """A TLS context whose new connections show what the two files hold now.

    While these cannot be used, as between the two steps of a rotation, the last pair stays.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        client_ca: Path | None = None,
        flags: str = "--tls-cert-file and --tls-private-key-file",
    ) -> None:
        """Read the files.

        client_ca: clients need a certificate of one of the CAs in it (mutual TLS). It is followed
        too; a CA that is taken out counts until the next start. flags: what sets the pair's paths.

        Raises:
            CertificateError: they cannot be used; the message says why.
        """
        self._certificate, self._key = FileWatch(certificate), FileWatch(key)
        self._client_ca = None if client_ca is None else FileWatch(client_ca)
        self._flags = flags
        self._problem = ""
        self.context = _server_context()
        self._changed()
        self._use(self._read())

    async def run(self, stop: Stop) -> None:
        """Follow the files until stop."""
        async for _ in stop.every(INTERVAL):
            if self._changed() or self._is_gone():
                await self._renew()

    def health(self) -> PartHealth:
        """Degraded while the files cannot be used."""
        return PartHealth(HealthStatus.DEGRADED, self._problem) if self._problem else OK

    def _changed(self) -> bool:
        changed = [file.changed() for file in self._files()]
        return any(changed)

    def _files(self) -> list[FileWatch]:
        return [
            file for file in (self._certificate, self._key, self._client_ca) if file is not None
        ]

    def _is_gone(self) -> bool:
        return not all(file.path.exists() for file in self._files())

    async def _renew(self) -> None:
        try:
            pems = await asyncio.to_thread(self._read)
        except CertificateError as err:
            self._refuse(err)
        else:
            self._use(pems)
            self._problem = ""
            log.info("certificate.renewed", path=str(self._certificate.path))

    def _refuse(self, err: CertificateError) -> None:
        self._certificate.again()  # the key may follow
        if str(err) != self._problem:
            log.error("certificate.unusable", error=str(err), note="the last good pair stays")
        self._problem = str(err)

    def _use(self, pems: Pems) -> None:
        """Load the certificate, key and client CA from the files into the current context."""
        certificate, key, client_ca = pems
        load_pair(self.context, certificate, key)
        if client_ca is not None:
            load_client_ca(self.context, client_ca)

    def _read(self) -> Pems:
        """Return the files, tried on a context of their own.

        The one in use would be left with half a pair.
        """
        try:
            pair = self._certificate.read(MAX_PEM_BYTES), self._key.read(MAX_PEM_BYTES)
            load_pair(_server_context(), *pair)
        except (FileReadError, ssl.SSLError, ValueError) as err:
            raise CertificateError(
                f"{self._certificate.path} and {self._key.path}: wanted a certificate and its key "
                f"in PEM, found {_said(err)}; correct {self._flags}"
            ) from err
        if self._client_ca is None:
            return *pair, None
        try:
            client_ca = self._client_ca.read(MAX_PEM_BYTES)
            load_client_ca(_server_context(), client_ca)
        except (FileReadError, ssl.SSLError, ValueError) as err:
            raise CertificateError(
                f"{self._client_ca.path}: wanted certificates of CAs in PEM, found {_said(err)}"
            ) from err
        return *pair, client_ca


def load_client_ca(context: ssl.SSLContext, pem: bytes) -> None:
    """Make a context ask clients for a certificate of one of these CAs.

    Raises:
        ssl.SSLError, ValueError: the PEM text has no CA certificate.
    """
    context.load_verify_locations(cadata=pem.decode("ascii"))
    context.verify_mode = ssl.CERT_REQUIRED


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _said(err: Exception) -> str:
    return str(err.reason or err) if isinstance(err, ssl.SSLError) else str(err)
