"""When the webhook's certificate and its authority are renewed, and what is in them."""

import ssl
from dataclasses import replace

import pytest
from cryptography import x509

from koord_manager.certificates import CertificateSet, renewed, service_name

DAY = 86_400.0
NOW = 1_700_000_000.0
NAME = service_name("koordinator-system")


def trusts(authority: bytes) -> bool:
    return True


def doubts(authority: bytes) -> bool:
    return False


def issued(now: float = NOW) -> CertificateSet:
    found = renewed(None, NAME, now, is_trusted=doubts)
    assert found is not None
    return found[0]


def parsed(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def test_the_first_certificate_is_the_service_s_alone():
    """Its authority can sign for no other name, nor make another authority."""
    made = issued()
    certificate, authority = parsed(made.certificate), parsed(made.authorities)

    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME]
    constraints = authority.extensions.get_extension_for_class(x509.NameConstraints)
    assert (constraints.critical, constraints.value.permitted_subtrees) == (
        True, [x509.DNSName(NAME)]
    )  # fmt: skip
    assert (
        authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=made.authorities.decode())
    assert context.cert_store_stats()["x509_ca"] == 1


def test_no_key_is_shown():
    assert "PRIVATE" not in repr(issued())


@pytest.mark.parametrize(("days", "is_renewed"), [(0, False), (59, False), (61, True), (100, True)])
def test_a_certificate_is_renewed_a_third_of_its_life_before_it_expires(days, is_renewed):
    """By the same authority: API servers need not be told."""
    made = issued()
    found = renewed(made, NAME, NOW + days * DAY, is_trusted=doubts)

    assert (found is not None) == is_renewed
    if found is not None:
        new, _ = found
        assert (new.authorities, new.authority_key) == (made.authorities, made.authority_key)
        assert new.certificate != made.certificate
        assert renewed(new, NAME, NOW + days * DAY, is_trusted=doubts) is None


def with_new_authority(now: float) -> tuple[CertificateSet, CertificateSet]:
    """A set whose authority expires within a year at now, and what it becomes."""
    before = renewed(issued(now - 3290 * DAY), NAME, now - 10 * DAY, is_trusted=doubts)
    assert before is not None
    found = renewed(before[0], NAME, now, is_trusted=doubts)
    assert found is not None
    assert found[1] == "its authority expires"
    return before[0], found[0]


def test_a_new_authority_is_known_before_it_signs():
    """The old one stays in the bundle, and its certificate in use, until API servers know."""
    before, both = with_new_authority(NOW)

    assert both.authorities.endswith(before.authorities)
    assert len(x509.load_pem_x509_certificates(both.authorities)) == 2
    assert (both.certificate, both.key) == (before.certificate, before.key)

    assert renewed(both, NAME, NOW + 60, is_trusted=doubts) is None
    signed = renewed(both, NAME, NOW + 60, is_trusted=trusts)
    assert signed is not None
    parsed(signed[0].certificate).verify_directly_issued_by(parsed(both.authorities))
    assert signed[0].authorities == both.authorities
    assert renewed(signed[0], NAME, NOW + 60, is_trusted=doubts) is None


def test_an_expired_certificate_does_not_wait_for_trust():
    _, both = with_new_authority(NOW)

    found = renewed(both, NAME, NOW + 91 * DAY, is_trusted=doubts)

    assert found is not None
    parsed(found[0].certificate).verify_directly_issued_by(parsed(both.authorities))


def test_authorities_that_have_expired_go():
    _, both = with_new_authority(NOW)
    found = renewed(both, NAME, NOW + 3400 * DAY, is_trusted=doubts)

    assert found is not None
    new, reason = found
    assert reason == "its authority expires"
    assert len(x509.load_pem_x509_certificates(new.authorities)) == 2  # not three


OTHER = issued()


@pytest.mark.parametrize(
    "broken",
    [
        replace(OTHER, authorities=b"nonsense"),
        replace(OTHER, authorities=OTHER.authorities[:200]),
        replace(OTHER, authority_key=b"nonsense"),
        replace(OTHER, authority_key=OTHER.key),
        replace(OTHER, authorities=OTHER.certificate),
    ],
    ids=["no authority", "half an authority", "no key", "another key", "no CA"],
)
def test_a_broken_authority_is_replaced_with_all_it_signed(broken):
    found = renewed(broken, NAME, NOW, is_trusted=doubts)

    assert found is not None
    assert found[0].authorities not in (broken.authorities, OTHER.authorities)
    assert renewed(found[0], NAME, NOW, is_trusted=doubts) is None


@pytest.mark.parametrize(
    "broken",
    [
        replace(OTHER, certificate=b"nonsense"),
        replace(OTHER, key=OTHER.authority_key),
        replace(OTHER, key=b""),
        replace(OTHER, certificate=issued().certificate),
        replace(OTHER, certificate=OTHER.authorities, key=OTHER.authority_key),
    ],
    ids=["no certificate", "another key", "no key", "of another authority", "for no name"],
)
def test_a_broken_certificate_is_replaced_by_the_same_authority(broken):
    found = renewed(broken, NAME, NOW, is_trusted=doubts)

    assert found is not None
    assert found[0].authorities == OTHER.authorities
    assert renewed(found[0], NAME, NOW, is_trusted=doubts) is None


def test_a_certificate_for_another_namespace_is_replaced():
    """With its authority, which may not sign for that."""
    name = service_name("other")
    found = renewed(OTHER, name, NOW, is_trusted=doubts)

    assert found is not None
    assert found[0].authorities != OTHER.authorities
    assert renewed(found[0], name, NOW, is_trusted=doubts) is None


def test_one_from_the_future_is_replaced():
    """As after a clock that was ahead."""
    assert renewed(issued(NOW + 2 * DAY), NAME, NOW, is_trusted=doubts) is not None
    assert renewed(issued(NOW + 1800), NAME, NOW, is_trusted=doubts) is None
