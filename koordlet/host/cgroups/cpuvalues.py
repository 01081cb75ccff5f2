"""CPU time as the API, cgroup v1 and cgroup v2 express it: milli-CPU, shares, weight and quota.

Source: Kubernetes, pkg/kubelet/cm (MilliCPUToShares, MilliCPUToQuota); runc, shares to weight.
"""

MIN_SHARES, MAX_SHARES = 2, 262_144
MIN_WEIGHT, MAX_WEIGHT = 1, 10_000
SHARES_PER_CPU = 1024
QUOTA_PERIOD_US = 100_000  # the kernel's default; the kubelet leaves it so
MIN_QUOTA_US = 1000

_SHARES_SPAN = MAX_SHARES - MIN_SHARES
_WEIGHT_SPAN = MAX_WEIGHT - MIN_WEIGHT


def shares_to_weight(shares: int) -> int:
    """Return the cpu.weight for cpu.shares. The way back does not give the same shares.

    Raises:
        ValueError: not within 2 to 262144.
    """
    if not MIN_SHARES <= shares <= MAX_SHARES:
        raise ValueError(f"wanted {MIN_SHARES} to {MAX_SHARES} shares, found {shares}")
    return MIN_WEIGHT + (shares - MIN_SHARES) * _WEIGHT_SPAN // _SHARES_SPAN


def weight_to_shares(weight: int) -> int:
    """Return the cpu.shares for a cpu.weight.

    Raises:
        ValueError: not within 1 to 10000.
    """
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"wanted a weight of {MIN_WEIGHT} to {MAX_WEIGHT}, found {weight}")
    return (weight - MIN_WEIGHT) * _SHARES_SPAN // _WEIGHT_SPAN + MIN_SHARES


def milli_to_shares(milli_cpu: int) -> int:
    """Return the cpu.shares of a CPU request in thousandths of a core."""
    return min(max(milli_cpu * SHARES_PER_CPU // 1000, MIN_SHARES), MAX_SHARES)


def milli_to_quota(milli_cpu: int) -> int:
    """Return the quota, in microseconds per 100 ms, of a CPU limit; -1 (no limit) for none."""
    if milli_cpu <= 0:
        return -1
    return max(milli_cpu * QUOTA_PERIOD_US // 1000, MIN_QUOTA_US)
