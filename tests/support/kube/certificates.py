"""Certificates for tests, made by the openssl command."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path

    def server_context(self, client_ca: Path | None = None) -> ssl.SSLContext:
        """A context for a server; with client_ca it demands a client certificate of that CA."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(client_ca)
        return context


class Authority:
    """A CA that lives in a directory."""

    def __init__(self, directory: Path, name: str = "test CA", days: int = 2) -> None:
        self._directory = directory
        self.certificate = directory / "ca.crt"
        self.key = directory / "ca.key"
        _openssl("req", "-x509", *NEW_KEY, "-keyout", self.key, "-subj", f"/CN={name}",
                 "-days", str(days), "-addext", "keyUsage=critical,keyCertSign",
                 "-out", self.certificate)  # fmt: skip

    def issue(
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = ("127.0.0.1",),
        days: int = 1,
        group: str = "",
    ) -> Pair:
        """A certificate for a server at these hosts, and for a client called name, of a group."""
        key, request = self._directory / f"{name}.key", self._directory / f"{name}.csr"
        certificate, extensions = key.with_suffix(".crt"), key.with_suffix(".ext")
        names = (f"{'IP' if host[0].isdigit() else 'DNS'}:{host}" for host in hosts)
        extensions.write_text(f"subjectAltName={','.join(names)}\n")
        subject = (f"/O={group}" if group else "") + f"/CN={name}"
        _openssl("req", "-new", *NEW_KEY, "-keyout", key, "-subj", subject, "-out", request)
        _openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key,
                 "-days", str(days), "-extfile", extensions, "-out", certificate)  # fmt: skip
        return Pair(certificate, key)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
