"""The rules of extenders.

Source: Kubernetes, pkg/scheduler/apis/config/validation (validateExtenders).
"""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from koord.component.config.faults import Fault, FieldPath, duplicate, invalid, required, warning
from koord_scheduler.config.v1 import Extender, ExtenderTLSConfig

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NATIVE = "kubernetes.io"  # resources below it are Kubernetes' own


def check_extenders(extenders: Sequence[Extender]) -> Iterator[Fault]:
    """Yield the faults of completed extenders."""
    binding, managed = 0, set[str]()
    for index, one in enumerate(extenders):
        path: FieldPath = ("extenders", index)
        yield from _check_url(one, path)
        if one.prioritize_verb and one.weight <= 0:
            wanted = "wanted more than 0, as there is a prioritizeVerb"
            yield invalid((*path, "weight"), one.weight, wanted)
        if one.http_timeout < 0:
            yield invalid((*path, "httpTimeout"), f"{one.http_timeout:g}s", "wanted more than 0s")
        if one.bind_verb:
            binding += 1
            if binding == 2:
                wanted = "only one extender can bind pods"
                yield invalid((*path, "bindVerb"), one.bind_verb, wanted)
        if one.tls_config is not None:
            yield from _check_tls(one.tls_config, (*path, "tlsConfig"))
        for at, resource in enumerate(one.managed_resources):
            place = (*path, "managedResources", at, "name")
            if not is_extended_resource(resource.name):
                wanted = "wanted the name of an extended resource, such as example.com/gpu"
                yield invalid(place, resource.name, wanted)
            elif resource.name in managed:
                yield duplicate(place, resource.name)
            managed.add(resource.name)
        is_asked = one.filter_verb or one.prioritize_verb or one.preempt_verb or one.bind_verb
        if not is_asked and not any(each.ignored_by_scheduler for each in one.managed_resources):
            yield warning(path, "without a verb it is never asked")


def is_extended_resource(name: str) -> bool:
    """Whether a name is one of an extended resource: with a domain that is not Kubernetes' own."""
    domain, slash, rest = name.partition("/")
    if not slash or not _DOMAIN.fullmatch(domain) or len(domain) > 253 or not _NAME.fullmatch(rest):
        return False
    return (
        domain != _NATIVE
        and not domain.endswith(f".{_NATIVE}")
        and not domain.startswith("requests.")
    )


def _check_url(one: Extender, path: FieldPath) -> Iterator[Fault]:
    place = (*path, "urlPrefix")
    if not one.url_prefix:
        yield required(place)
        return
    try:
        url = urlsplit(one.url_prefix)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if not usable:
        yield invalid(place, one.url_prefix, "wanted a URL, such as https://extender.example:8888")


def _check_tls(tls: ExtenderTLSConfig, path: FieldPath) -> Iterator[Fault]:
    for key, text in (
        ("certData", tls.cert_data),
        ("keyData", tls.key_data),
        ("caData", tls.ca_data),
    ):
        try:
            base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            yield Fault((*path, key), "Invalid value: wanted base64")  # it may be a secret
    has_certificate = bool(tls.cert_file or tls.cert_data)
    if has_certificate != bool(tls.key_file or tls.key_data):
        missing = "keyFile" if has_certificate else "certFile"
        yield required((*path, missing), "a certificate and its key belong together")
