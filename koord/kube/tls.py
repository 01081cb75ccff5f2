"""TLS towards the API server: always verified, and renewed when its files are."""

import ssl
from pathlib import Path

from koord.kube.credentials import ApiConfig, Credential, Material
from koord.kube.errors import ConfigError
from koord.util.filewatch import FileReadError, FileWatch, read_bounded
from koord.util.keypair import MAX_PEM_BYTES, load_pair
from koord.util.logs import LogState, get_logger

log = get_logger("koord.kube")


class TlsContexts:
    """The TLS context for new connections.

    It is made anew when the CA, client certificate or key changed. While the new files do not fit
    together, as between the two steps of a rotation, the last context that worked stays in use.
    """

    def __init__(self, config: ApiConfig) -> None:
        self._config = config
        self._context: ssl.SSLContext | None = None
        self._made_of: Credential | None = None
        self._watches: dict[Path, FileWatch] = {}
        self._trouble = LogState(log)

    def current(self, credential: Credential) -> ssl.SSLContext:
        """Return the context.

        Raises:
            ConfigError: the files cannot be used, and no context worked before.
        """
        changed = [watch.changed() for watch in self._watched(credential)]
        same_data = self._made_of is not None and (
            (self._made_of.certificate, self._made_of.key)
            == (credential.certificate, credential.key)
        )
        if self._context is None or any(changed) or not same_data:
            self._context = self._renewed(credential)
        return self._context

    def _watched(self, credential: Credential) -> list[FileWatch]:
        materials = (self._config.ca, credential.certificate, credential.key)
        paths = [material for material in materials if isinstance(material, Path)]
        return [self._watches.setdefault(path, FileWatch(path)) for path in paths]

    def _renewed(self, credential: Credential) -> ssl.SSLContext:
        try:
            context = _verifying(self._config, credential)
        except ConfigError as err:
            for watch in self._watches.values():
                watch.again()
            if self._context is None:
                raise
            self._trouble.failed("tls.unusable", error=str(err))
            return self._context
        self._made_of = credential
        self._trouble.ended("tls.usable", source=self._config.source)
        return context


def _verifying(config: ApiConfig, credential: Credential) -> ssl.SSLContext:
    # Not ssl.create_default_context(): from Python 3.13 on it asks CAs for extensions that those of
    # many clusters lack (VERIFY_X509_STRICT).
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, config.ca)
    if credential.certificate is not None and credential.key is not None:
        _load_pair(context, credential.certificate, credential.key)
    return context


def _load_ca(context: ssl.SSLContext, ca: Material) -> None:
    where = ca if isinstance(ca, Path) else "certificate-authority-data"
    try:
        context.load_verify_locations(cadata=_pem(ca).decode("ascii", errors="ignore"))
    except (ssl.SSLError, FileReadError, ValueError) as err:
        raise ConfigError(where, wanted="a CA certificate in PEM", found=str(err)) from err


def _load_pair(context: ssl.SSLContext, certificate: Material, key: Material) -> None:
    where = certificate if isinstance(certificate, Path) else "client-certificate-data"
    try:
        load_pair(context, _pem(certificate), _pem(key))
    except (ssl.SSLError, FileReadError, ValueError) as err:
        wanted = "a client certificate and its key in PEM"
        raise ConfigError(where, wanted=wanted, found=str(err)) from err


def _pem(material: Material) -> bytes:
    return read_bounded(material, MAX_PEM_BYTES) if isinstance(material, Path) else material
