"""The certificate of the webhook where no files have one: the manager issues it.

The leader keeps an authority (CA) and a certificate of it in a Secret of its own namespace, and the
authorities as caBundle of its MutatingWebhookConfiguration. Every replica serves what the Secret
has. The authority may sign for the name of the webhook's Service alone. Imported only where it is
needed: cryptography takes 10 MiB of memory.
"""

import asyncio
import base64
import binascii
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from prometheus_client import CollectorRegistry, Gauge

from koord.kube.client import ApiClient, Resource, field_selector
from koord.kube.errors import AlreadyExists, Conflict, KubeError, PatchRejected
from koord.kube.events import Event, EventType, ObjectRef
from koord.kube.informer import SharedInformer
from koord.kube.reflector import Change, Watched
from koord.kube.transport import Object
from koord.util.clock import Clock
from koord.util.health import HealthStatus, LastingFailure, PartHealth
from koord.util.keypair import load_pair
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord_manager import NAME, PREFIX

SECRETS = Resource("v1", "secrets")
CONFIGURATIONS = Resource("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
SERVICE = "koord-manager-webhook"
SECRET = SERVICE  # the Secret has the name of the Service
CONFIGURATION = NAME
MANAGED_BY = "app.kubernetes.io/managed-by"
INJECTED_FROM = "cert-manager.io/inject-ca-from"
AUTHORITY_LIFE, AUTHORITY_MARGIN = timedelta(days=3650), timedelta(days=365)
LIFE, MARGIN = timedelta(days=90), timedelta(days=30)  # of the certificate that is served
BACKDATED = timedelta(hours=1)  # for clocks that are behind
SETTLE = 60.0  # seconds after which API servers know of an authority
LOOK = 60.0  # seconds between two looks without a change
PAUSE = 1.0  # seconds after a change; it bounds what a quarrel about an object costs
MAX_PEM = 64 << 10  # bytes of each text of the Secret
_FIELDS = {
    "ca.crt": "authorities",
    "ca.key": "authority_key",
    "tls.crt": "certificate",
    "tls.key": "key",
}

log = get_logger("koord_manager.certificates")


@dataclass(frozen=True, slots=True)
class CertificateSet:
    """The texts of the Secret, all PEM."""

    authorities: bytes  # the newest first, which has the key
    authority_key: bytes = field(repr=False)
    certificate: bytes
    key: bytes = field(repr=False)

    def data(self) -> dict[str, str]:
        """Return the data of the Secret."""
        return {
            key: base64.b64encode(getattr(self, name)).decode() for key, name in _FIELDS.items()
        }


def service_name(namespace: str) -> str:
    """Return the name that the API server wants in the certificate."""
    return f"{SERVICE}.{namespace}.svc"


def renewed(
    found: CertificateSet | None, name: str, now: float, *, is_trusted: Callable[[bytes], bool]
) -> tuple[CertificateSet, str] | None:
    """Return what the Secret is to have in place of found, and why; None: it stays.

    now: Unix seconds. is_trusted: whether API servers know the newest authority, its PEM. A new
    authority comes some time before a certificate of it, so that no review fails meanwhile.
    """
    at = datetime.fromtimestamp(now, UTC)
    if found is None:
        return _all_new(name, at), "there is none"
    try:
        authorities = _authorities(found.authorities)
        key, newest = _private_key(found.authority_key), authorities[0]
        belongs = newest.public_key() == key.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return _all_new(name, at), "it cannot be read"
    if not (_is_valid(newest, at) and belongs and _signs_for(newest, name)):
        return _all_new(name, at), "its authority cannot be used"
    if newest.not_valid_after_utc - at < AUTHORITY_MARGIN:
        made, new_key = _new_authority(name, at)
        kept = [one for one in authorities if one.not_valid_after_utc > at][:3]
        bundle = b"".join(map(_pem, (made, *kept)))
        new = CertificateSet(bundle, _key_pem(new_key), found.certificate, found.key)
        return new, "its authority expires"
    reason = _why_certificate(found, name, at, authorities, is_trusted)
    if not reason:
        return None
    certificate, own_key = _new_certificate(name, at, newest, key)
    texts = _pem(certificate), _key_pem(own_key)
    return CertificateSet(found.authorities, found.authority_key, *texts), reason


def _why_certificate(
    found: CertificateSet,
    name: str,
    at: datetime,
    authorities: list[x509.Certificate],
    is_trusted: Callable[[bytes], bool],
) -> str:
    """Return why there is to be another certificate now; "": it stays."""
    try:
        certificate = x509.load_pem_x509_certificate(found.certificate)
        own_key = _private_key(found.key)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        belongs = certificate.public_key() == own_key.public_key()
    except (ValueError, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return "its certificate cannot be read"
    issuers = [one for one in authorities if _is_issued_by(certificate, one)]
    is_usable = (
        bool(issuers)
        and belongs
        and _is_valid(certificate, at)
        and name in names.get_values_for_type(x509.DNSName)
    )
    if not is_usable:
        return "its certificate cannot be used"
    if issuers[0] is not authorities[0]:
        return "its authority is another" if is_trusted(_pem(authorities[0])) else ""
    expires = certificate.not_valid_after_utc - at < MARGIN
    return "its certificate expires" if expires else ""


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        return False
    return True


def _is_valid(certificate: x509.Certificate, at: datetime) -> bool:
    return bool(certificate.not_valid_before_utc <= at < certificate.not_valid_after_utc)


def _signs_for(authority: x509.Certificate, name: str) -> bool:
    """Whether an authority may sign for a name."""
    try:
        found = authority.extensions.get_extension_for_class(x509.NameConstraints).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    return bool(found.permitted_subtrees == [x509.DNSName(name)])


def _authorities(text: bytes) -> list[x509.Certificate]:
    """Return the certificates. Raises ValueError."""
    found: list[x509.Certificate] = x509.load_pem_x509_certificates(text)
    return found


def _private_key(text: bytes) -> ec.EllipticCurvePrivateKey:
    """Return the key. Raises ValueError, also for one that is not as ours."""
    try:
        found = load_pem_private_key(text, password=None)
    except (TypeError, UnsupportedAlgorithm) as err:  # TypeError: it is encrypted
        raise ValueError("wanted a private key without a password") from err
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ValueError("wanted a key of an elliptic curve")  # noqa: TRY004 - of the text
    return found


def _all_new(name: str, at: datetime) -> CertificateSet:
    authority, key = _new_authority(name, at)
    certificate, own_key = _new_certificate(name, at, authority, key)
    return CertificateSet(_pem(authority), _key_pem(key), _pem(certificate), _key_pem(own_key))


def _new_authority(name: str, at: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    return _issue(
        "koord-manager webhook authority",
        at,
        AUTHORITY_LIFE,
        None,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage(signs=True), True),
        (x509.NameConstraints([x509.DNSName(name)], None), True),
    )


def _new_certificate(
    name: str, at: datetime, authority: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    return _issue(
        SERVICE,
        at,
        LIFE,
        (authority, key),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([x509.DNSName(name)]), False),
    )


def _issue(
    common_name: str,
    at: datetime,
    life: timedelta,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    *extensions: tuple[x509.ExtensionType, bool],
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a certificate and its key. issuer None: it signs itself. The bool: it is critical."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    signer = key if issuer is None else issuer[1]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - BACKDATED)
        .not_valid_after(at + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    return builder.sign(signer, hashes.SHA256()), key


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    found: bytes = certificate.public_bytes(Encoding.PEM)
    return found


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    found: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return found


@dataclass(frozen=True, slots=True)
class _SecretState:
    version: str
    is_ours: bool
    texts: CertificateSet | None  # None: one is missing or no base64


def _read_secret(item: Object) -> _SecretState:
    meta, data = item["metadata"], item.get("data")
    is_ours = (meta.get("labels") or {}).get(MANAGED_BY) == NAME
    texts = {}
    for key, name in _FIELDS.items():
        text = data.get(key) if isinstance(data, dict) else None
        found = _decoded(text)
        if not found:
            return _SecretState(meta["resourceVersion"], is_ours, None)
        texts[name] = found
    return _SecretState(meta["resourceVersion"], is_ours, CertificateSet(**texts))


def _decoded(text: object) -> bytes:
    """Return what a text of base64 says; empty where it is none, or too long."""
    if not isinstance(text, str) or len(text) > MAX_PEM * 4 // 3:
        return b""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


@dataclass(frozen=True, slots=True)
class _Webhooks:
    """The parts of a MutatingWebhookConfiguration that matter."""

    version: str
    uid: str
    injected: bool  # cert-manager writes its bundles
    bundles: tuple[tuple[int, str, bytes], ...]  # place, name and bundle of those of our Service


def _read_configuration(item: Object, namespace: str) -> _Webhooks:
    meta = item["metadata"]
    found = []
    for at, one in enumerate(item.get("webhooks") or ()):
        client = one.get("clientConfig") or {}
        service = client.get("service") or {}
        if (service.get("namespace"), service.get("name")) == (namespace, SERVICE):
            found.append((at, str(one.get("name")), _decoded(client.get("caBundle"))))
    injected = INJECTED_FROM in (meta.get("annotations") or {})
    return _Webhooks(meta["resourceVersion"], meta.get("uid", ""), injected, tuple(found))


class ManagedCertificate:
    """The certificate: run, in every replica, follows it; keep, in the leader, renews it."""

    name = "webhook certificate"

    def __init__(
        self,
        reader: ApiClient,
        writer: ApiClient,
        namespace: str,
        clock: Clock,
        emit: Callable[[Event], None],
        registry: CollectorRegistry,
        *,
        dry_run: bool,
    ) -> None:
        """namespace: of the daemon. writer sends while this replica leads, and raises otherwise."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._writer = writer
        self._namespace = namespace
        self._clock = clock
        self._emit = emit
        self._dry_run = dry_run
        self._usable = asyncio.Event()
        self._changed = asyncio.Event()
        self._reading = LastingFailure(log)
        self._keeping = LastingFailure(log)
        self._known: tuple[bytes, float] = (b"", 0.0)  # bundle in force, and since when
        self._expires = 0.0  # Unix seconds
        gauge = Gauge(
            f"{PREFIX}_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate expires that the webhook serves; 0: there is none, or it is in "
            "files.",
            registry=registry,
        )
        gauge.set_function(lambda: self._expires)
        of_secret = {"fieldSelector": field_selector({"metadata.name": SECRET})}
        self._secrets = SharedInformer(
            reader,
            Watched(
                name="webhook secret",
                path=SECRETS.collection(namespace),
                query=of_secret,
                read=_read_secret,
                on_change=self._see,
                component="manager/webhook",
            ),
            clock,
        )
        of_ours = {"fieldSelector": field_selector({"metadata.name": CONFIGURATION})}
        self._configurations = SharedInformer(
            reader,
            Watched(
                name="webhook configuration",
                path=CONFIGURATIONS.collection(),
                query=of_ours,
                read=lambda item: _read_configuration(item, namespace),
                on_change=lambda change: self._changed.set(),
                component="manager/webhook",
            ),
            clock,
        )

    async def wait_usable(self) -> None:
        """Return when there is a certificate to serve."""
        await self._usable.wait()

    def health(self) -> PartHealth:
        """Unhealthy without a certificate; degraded while it cannot be kept or has not long."""
        reasons = [
            one.reason
            for one in (
                self._reading.health(),
                self._keeping.health(),
                self._secrets.health(),
                self._configurations.health(),
            )
            if one.reason
        ]
        if not self._usable.is_set():
            text = "; ".join(["there is no certificate yet", *reasons])
            return PartHealth(HealthStatus.UNHEALTHY, text)
        left = self._expires - self._clock.wall()
        if left < MARGIN.total_seconds() / 2:
            reasons.insert(0, f"the certificate expires in {left / 3600:.0f} h")
        if not reasons:
            return PartHealth(HealthStatus.OK)
        return PartHealth(HealthStatus.DEGRADED, "; ".join(reasons))

    async def run(self, stop: Stop) -> None:
        """Follow the Secret and the configuration until stop."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._secrets.run(stop), name="webhook secret")
            group.create_task(self._configurations.run(stop), name="webhook configuration")

    def _see(self, change: Change[_SecretState]) -> None:
        self._changed.set()
        found = change.new
        if found is None or not found.is_ours:
            return
        try:
            expires = _use(self.context, found.texts)
        except (ValueError, ssl.SSLError):
            text = f"Secret {SECRET} cannot be used; the last good certificate stays"
            self._reading.failed("certificate.unusable", text, secret=SECRET)
            return
        self._reading.ended("certificate.recovered")
        if expires != self._expires:
            days = round((expires - self._clock.wall()) / 86_400, 1)
            log.info("certificate.loaded", secret=SECRET, expires_in_days=days)
        self._expires = expires
        self._usable.set()

    async def keep(self, stop: Stop) -> None:
        """Keep the Secret and the caBundle until stop. For the leader alone."""
        await stop.bound(self._secrets.wait_synced())
        try:
            async for _ in stop.every(LOOK, self._changed):
                self._changed.clear()
                try:
                    problem = await self._reconcile()
                except KubeError as err:
                    problem = str(err)
                if problem:
                    self._keeping.failed("certificate.not_kept", problem, error=problem)
                else:
                    self._keeping.ended("certificate.kept_again")
                await stop.sleep(PAUSE)
        finally:
            self._keeping = LastingFailure(log)  # the next leader's

    async def _reconcile(self) -> str:
        """Write what is to be written; return what hinders. Raises KubeError."""
        secret = self._secrets.objects.get(f"{self._namespace}/{SECRET}")
        if secret is not None and not secret.is_ours:
            return (
                f"Secret {SECRET} has no label {MANAGED_BY}: {NAME}: delete it, or give its files "
                f"with --tls-cert-file and --tls-private-key-file"
            )
        texts = secret.texts if secret else None
        name, now = service_name(self._namespace), self._clock.wall()
        found = renewed(texts, name, now, is_trusted=self._is_trusted)
        if found is not None:
            texts, reason = found
            if secret is not None and secret.texts is None:
                reason = "it cannot be read"
            if not await self._write(texts, secret, reason):
                return ""  # another version is on its way
        assert texts is not None  # noqa: S101 - renewed returns one where there is none
        return await self._keep_bundle(texts.authorities)

    async def _write(self, texts: CertificateSet, secret: _SecretState | None, reason: str) -> bool:
        """Write the Secret; False: it has changed meanwhile. Raises KubeError."""
        if self._dry_run:
            return False
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": SECRET,
                "namespace": self._namespace,
                "labels": {MANAGED_BY: NAME},
            },
            "data": texts.data(),
        }
        try:
            if secret is None:
                body["type"] = "kubernetes.io/tls"
                await self._writer.create(
                    SECRETS.collection(self._namespace), body, field_manager=NAME
                )
            else:
                operations: list[Mapping[str, Any]] = [
                    {"op": "test", "path": "/metadata/resourceVersion", "value": secret.version},
                    {"op": "add", "path": "/data", "value": texts.data()},
                ]
                path = SECRETS.object(SECRET, namespace=self._namespace)
                await self._writer.json_patch(path, operations, field_manager=NAME)
        except (AlreadyExists, Conflict, PatchRejected):
            return False
        log.info("certificate.written", secret=SECRET, reason=reason)
        return True

    def _is_trusted(self, authority: bytes) -> bool:
        bundle, since = self._known
        return authority in bundle and self._clock.monotonic() - since >= SETTLE

    async def _keep_bundle(self, wanted: bytes) -> str:
        """Write the caBundle where it is another; return what hinders. Raises KubeError."""
        if not self._configurations.synced:
            return "MutatingWebhookConfigurations are not known yet"
        found = self._configurations.objects.get(CONFIGURATION)
        if found is None or not found.bundles:
            return (
                f"no MutatingWebhookConfiguration {CONFIGURATION} names Service {SERVICE}: no pod "
                f"is mutated; apply the component webhook"
            )
        if found.injected:
            return (
                f"MutatingWebhookConfiguration {CONFIGURATION} has the annotation {INJECTED_FROM}: "
                f"take it off, or give cert-manager's files with --tls-cert-file and "
                f"--tls-private-key-file"
            )
        others = [(at, name) for at, name, bundle in found.bundles if bundle != wanted]
        if not others:
            if self._known[0] != wanted:
                self._known = (wanted, self._clock.monotonic())
            return ""
        is_edited, self._known = self._known[0] == wanted, (b"", 0.0)
        if self._dry_run:
            return ""
        operations: list[Mapping[str, Any]] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": found.version}
        ]
        bundle = base64.b64encode(wanted).decode()
        for at, name in others:
            place = f"/webhooks/{at}"
            operations += [
                {"op": "test", "path": f"{place}/name", "value": name},
                {"op": "add", "path": f"{place}/clientConfig/caBundle", "value": bundle},
            ]
        try:
            path = CONFIGURATIONS.object(CONFIGURATION)
            await self._writer.json_patch(path, operations, field_manager=NAME)
        except (Conflict, PatchRejected):
            return ""  # another version is on its way
        log.info("ca_bundle.written", configuration=CONFIGURATION, edited=is_edited)
        if is_edited:
            kind = "MutatingWebhookConfiguration"
            about = ObjectRef(CONFIGURATIONS.api_version, kind, CONFIGURATION, uid=found.uid)
            text = "its caBundle was changed by hand: taken back"
            self._emit(Event(about, EventType.WARNING, "CABundleEdited", text, NAME))
        return ""


def _use(context: ssl.SSLContext, texts: CertificateSet | None) -> float:
    """Load the pair, tried on a context of its own first; return when it expires, Unix seconds.

    Raises:
        ValueError, ssl.SSLError: it cannot be used.
    """
    if texts is None:
        raise ValueError("a text is missing")
    certificate = x509.load_pem_x509_certificate(texts.certificate)
    load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), texts.certificate, texts.key)
    load_pair(context, texts.certificate, texts.key)
    expires: datetime = certificate.not_valid_after_utc
    return expires.timestamp()
