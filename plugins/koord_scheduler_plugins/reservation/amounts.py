"""Amounts of resources: cpu in thousandths of a core, all else in units; what is absent is 0."""

from collections.abc import Iterable, Mapping

from koord.api.fields import Fields
from koord.api.pod import Share, amount, running_total
from koord.api.quantity import Quantity
from koord.plugin import InvalidObject

Amounts = Mapping[str, int]

MAX_AMOUNT = 2**50  # of one resource; larger ones count as this, as in pods of the cluster
MAX_RESOURCES = 256  # of one list


def read_amounts(fields: Fields, key: str) -> dict[str, int]:
    """Return a resource list.

    Raises:
        InvalidObject: it is none, has too many resources, or an amount below 0.
    """
    found: dict[str, int] = {}
    texts = fields.quantities(key)
    if len(texts) > MAX_RESOURCES:
        wanted = f"at most {MAX_RESOURCES} resources"
        raise InvalidObject(fields.path(key), wanted=wanted, found=len(texts))
    for name, text in texts.items():
        value = amount(name, text)
        if value < 0:
            raise InvalidObject(f"{fields.path(key)}.{name}", wanted="0 or more", found=text)
        found[name] = min(value, MAX_AMOUNT)
    return found


def template_requests(spec: Fields) -> dict[str, int]:
    """Return what a pod of a template's spec requests, its overhead too. Without zeros.

    Raises:
        InvalidObject: a list of resources is malformed.

    Source: Kubernetes, component-helpers resource.PodRequests.
    """
    regular = [_requests(one) for one in spec.objects("containers")]
    init = [
        (_requests(one), one.text("restartPolicy") == "Always")
        for one in spec.objects("initContainers")
    ]
    names = {name for one in (*regular, *(each for each, _ in init)) for name in one}
    total = {
        name: running_total(
            (one.get(name, 0) for one in regular),
            (Share(one.get(name, 0), sidecar) for one, sidecar in init),
        )
        for name in names
    }
    total.update(_requests(spec))
    for name, value in read_amounts(spec, "overhead").items():
        total[name] = total.get(name, 0) + value
    return {name: min(total[name], MAX_AMOUNT) for name in sorted(total) if total[name]}


def amount_text(name: str, value: int) -> str:
    """Return an amount as a quantity."""
    if name == "cpu":
        return str(Quantity.of_milli(value))
    is_bytes = name in ("memory", "ephemeral-storage") or name.startswith("hugepages-")
    return str(Quantity.of_bytes(value)) if is_bytes else str(value)


def amount_texts(amounts: Amounts) -> dict[str, str]:
    """Return amounts as a resource list of JSON, sorted by name."""
    return {name: amount_text(name, amounts[name]) for name in sorted(amounts)}


def minus(amounts: Amounts, *others: Amounts) -> dict[str, int]:
    """Return amounts less the others, never below 0; only what amounts has."""
    return {
        name: max(0, value - sum(one.get(name, 0) for one in others))
        for name, value in amounts.items()
    }


def total(some: Iterable[Amounts]) -> dict[str, int]:
    """Return the sums over several amounts."""
    found: dict[str, int] = {}
    for one in some:
        for name, value in one.items():
            found[name] = found.get(name, 0) + value
    return found


def masked(amounts: Amounts, names: Iterable[str]) -> dict[str, int]:
    """Return the amounts of some resources, without zeros."""
    return {name: amounts[name] for name in names if amounts.get(name)}


def _requests(fields: Fields) -> dict[str, int]:
    return read_amounts(fields.nested("resources"), "requests")
