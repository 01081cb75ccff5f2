"""Licenses: as many as an annotation of the node says, or as the pool of its label has."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from koord.plugin.args import FieldError, invalid, takes_args
from koord_manager.plugin import (
    Calculation,
    Handle,
    NodeFacts,
    NodeResourcePlugin,
    Offered,
    Term,
    reads,
)

LICENSES = "example.com/licenses"  # the resource, and the annotation of a Node
POOL = "example.com/license-pool"  # label of a Node


@dataclass(frozen=True, kw_only=True, slots=True)
class LicensesArgs:
    """How many licenses the nodes of each pool have."""

    pools: Mapping[str, int] = field(default_factory=dict)  # by value of the label

    def validate(self) -> Iterator[FieldError]:
        for name, count in self.pools.items():
            if count < 0:
                yield invalid(("pools", name), count, "wanted 0 licenses or more")


@takes_args(LicensesArgs)
@reads(node_annotations={LICENSES: 16}, node_labels=(POOL,))
class Licenses(NodeResourcePlugin):
    """Offers licenses; the annotation wins over the pool."""

    def __init__(self, args: LicensesArgs, handle: Handle) -> None:
        self._pools = args.pools

    def calculate(self, node: NodeFacts, earlier: Calculation) -> Calculation:
        text = node.annotation(LICENSES)
        problems: tuple[str, ...] = ()
        amount, origin = self._pools.get(node.labels.get(POOL, "")), "license pool"
        if text is not None and text.isdecimal() and text.isascii():
            amount, origin = int(text), "annotation"
        elif text is not None:
            problems = (f"annotation {LICENSES}: wanted a whole number, found {text!r}",)
        if amount is None:
            none = Offered(amount=None, reason="neither an annotation nor a license pool")
            return Calculation(resources={LICENSES: none}, problems=problems)
        offered = Offered(amount=amount, terms=(Term(origin, amount),))
        return Calculation(resources={LICENSES: offered}, problems=problems)
