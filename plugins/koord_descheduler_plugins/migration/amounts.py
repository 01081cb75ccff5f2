"""How many pods of a workload may be on their way at a time.

Source: Koordinator, pkg/descheduler/controllers/migration/util: GetMaxMigrating.
"""

_LARGE, _SMALL = 10, 4  # replicas


def most_of(replicas: int, setting: int | str | None) -> int:
    """Return how many of so many replicas a setting allows: a number, a text like "10%", or None.

    At least 1, at most all. A percentage is rounded down.
    """
    if isinstance(setting, str):
        most = replicas * int(setting[:-1]) // 100
    elif setting is not None:
        most = setting
    elif replicas > _LARGE:
        most = replicas // 10
    else:
        most = 2 if replicas >= _SMALL else 1
    return min(max(most, 1), replicas)


def has_enough_replicas(
    replicas: int, migrating: int | str | None, unavailable: int | str | None
) -> bool:
    """Whether a workload may lose pods at all: some of its replicas must be left."""
    if replicas <= 1:
        return False
    return replicas not in (most_of(replicas, migrating), most_of(replicas, unavailable))
