"""Division of a parent's amount of one resource among its children, in exact whole numbers."""

from collections.abc import Sequence


def divide(
    total: int,
    bases: Sequence[int],
    requests: Sequence[int],
    weights: Sequence[int],
    lends: Sequence[bool],
) -> list[int]:
    """Return the runtime of each child; all sequences are in order of their names.

    A child has its base (min, or what is guaranteed), or its request where that is less and it
    lends. What then is left of total is shared by weight among those that request more. The sum
    exceeds total where the bases do; it is below where nobody requests more.

    Source: Koordinator, quotaTree.redistribution.
    """
    runtimes, sharers, rest = [], [], total
    for at, base in enumerate(bases):  # one loop: a tree of 1,000 quotas has hundreds of parents
        runtime, request = base, requests[at]
        if request > base:
            if weights[at] > 0:
                sharers.append(at)
        elif lends[at]:
            runtime = request
        runtimes.append(runtime)
        rest -= runtime
    while rest > 0 and sharers:
        shares = largest_remainder(rest, [weights[at] for at in sharers])
        rest, staying = 0, []
        for number, at in enumerate(sharers):
            runtime, request = runtimes[at] + shares[number], requests[at]
            if runtime >= request:
                rest += runtime - request
                runtimes[at] = request
            else:
                runtimes[at] = runtime
                staying.append(at)
        sharers = staying
    return runtimes


def largest_remainder(amount: int, weights: Sequence[int]) -> list[int]:
    """Split amount in proportion to positive weights; the shares sum up to it exactly.

    The units that rounding down leaves over go to the largest remainders; of equal ones, to the
    first.
    """
    if len(weights) == 1:
        return [amount]
    whole, left_over = sum(weights), amount
    shares, remainders = [], []
    for weight in weights:
        share, remainder = divmod(weight * amount, whole)
        shares.append(share)
        remainders.append(remainder)
        left_over -= share
    if left_over == 1:
        shares[remainders.index(max(remainders))] += 1
    elif left_over:
        by_remainder = sorted(range(len(weights)), key=remainders.__getitem__, reverse=True)
        for at in by_remainder[:left_over]:
            shares[at] += 1
    return shares


def scaled_mins(
    total: int, mins: Sequence[int], scaling: Sequence[bool] | None = None
) -> list[int]:
    """Return the mins of all children as they count when their sum exceeds total.

    scaling: which of them are scaled; None: all. The others are served first.

    Source: Koordinator, ScaleMinQuotaManager.
    """
    if sum(mins) <= total:
        return list(mins)
    scales = [True] * len(mins) if scaling is None else scaling
    fixed = sum(low for low, scale in zip(mins, scales, strict=True) if not scale)
    left, scaled = max(total - fixed, 0), sum(mins) - fixed
    return [
        left * low // scaled if scale and scaled else low
        for low, scale in zip(mins, scales, strict=True)
    ]
