"""The result of a benchmark: a figure, its reference and its budget."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ratio = value / reference, both measured in the same run."""

    name: str
    value: float
    unit: str
    budget: float | None = None  # in the same unit; None where only the ratio was promised
    reference: float | None = None
    reference_name: str = ""
    ratio_budget: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.reference if self.reference else None

    @property
    def kept(self) -> bool | None:
        """Whether the promise was kept; None where there is none."""
        promises = []
        if self.budget is not None:
            promises.append(self.value <= self.budget)
        if self.ratio_budget is not None and self.ratio is not None:
            promises.append(self.ratio <= self.ratio_budget)
        return all(promises) if promises else None


def render(rows: Iterable[Row]) -> str:
    """A plain table; timings are facts to read, they never fail anything."""
    lines = [
        f"{'benchmark':<46}{'value':>10} {'unit':<9}{'budget':>9}{'ratio':>8}  {'of':<32}promise"
    ]
    for row in rows:
        budget = "" if row.budget is None else f"{row.budget:g}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        promise = {True: "kept", False: "MISSED", None: ""}[row.kept]
        lines.append(
            f"{row.name:<46}{row.value:>10.4g} {row.unit:<9}{budget:>9}{ratio:>8}"
            f"  {row.reference_name:<32}{promise}"
        )
    return "\n".join(lines)
