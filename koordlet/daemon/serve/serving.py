"""Serving: the certificate of the HTTP server, and the config file read again on request."""

from dataclasses import dataclass
from pathlib import Path

from koord.component.components import ComponentSet
from koord.component.http.certificate import ServingCertificate
from koord.component.http.exposition import Exposition
from koordlet.daemon.settings.liveconfig import LiveConfig, follow_config
from koordlet.daemon.settings.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """The exposition, the followed config file and the certificate of the daemon."""

    exposition: Exposition
    live_config: LiveConfig | None  # None: no --config
    certificate: ServingCertificate | None  # None: plain HTTP

    def add_to(self, components: ComponentSet) -> None:
        """Have both run, and register their health."""
        components.add("config", self.live_config)
        components.add("certificate", self.certificate)


def build_serving(settings: Settings, exposition: Exposition) -> Serving:
    """Make the parts.

    Raises:
        KoordError: the certificate cannot be used.
    """
    return Serving(
        exposition=exposition,
        live_config=follow_config(settings, settings.config) if settings.config else None,
        certificate=_certificate(settings),
    )


def _certificate(settings: Settings) -> ServingCertificate | None:
    certificate = settings.options.tls_cert_file.value
    key = settings.options.tls_private_key_file.value
    return ServingCertificate(Path(certificate), Path(key)) if certificate else None
