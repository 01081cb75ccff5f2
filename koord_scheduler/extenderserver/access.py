"""Which clients may ask: those of this machine, or those with a certificate or a token."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from koord.component.http.certificate import ServingCertificate
from koord.component.http.guard import Guard, local_only
from koord.component.http.tokenfile import TokenFile


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessFiles:
    """Paths of what TLS and tokens need, all PEM but the token; None: not given."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    token: Path | None = None

    @property
    def known(self) -> bool:
        """Whether clients have to prove that they may ask."""
        return self.client_ca is not None or self.token is not None


class Access:
    """What the files hold, followed by the parts that are not None."""

    def __init__(self, files: AccessFiles, oldest_tls: ssl.TLSVersion) -> None:
        """Read the files. Without any, only local clients are let in.

        Raises:
            CertificateError, TokenFileError: one cannot be used.
        """
        self.certificate: ServingCertificate | None = None
        if files.certificate is not None and files.key is not None:
            flags = "--extender-tls-cert-file and --extender-tls-private-key-file"
            self.certificate = ServingCertificate(
                files.certificate, files.key, client_ca=files.client_ca, flags=flags
            )
            self.certificate.context.minimum_version = oldest_tls
        self.tls = self.certificate.context if self.certificate is not None else None
        self.token = TokenFile(files.token) if files.token is not None else None
        self.guard: Guard | None = self.token
        if not files.known:
            self.guard = local_only
