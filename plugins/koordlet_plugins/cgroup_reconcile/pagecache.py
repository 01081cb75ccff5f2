"""The limit of a pod's page cache, on kernels that have one. Pure."""

from typing import NamedTuple

from koord.api.slo.resourceqos import MemoryQoS


class PageCacheLimit(NamedTuple):
    """The values to write; None: unchanged."""

    enable: int | None = None  # 0 or 1
    size: int | None = None  # bytes
    sync: int | None = None  # 1: reclaim while allocating


def page_cache_limit(settings: MemoryQoS, memory_limit: int) -> PageCacheLimit:
    """Return the limit of a pod with this memory limit in bytes, -1 for none."""
    found = _of_size(_size(settings, memory_limit), reclaim=bool(settings.page_cache_reclaim_sync))
    if settings.page_cache_enable is None:
        return found
    return found._replace(enable=int(settings.page_cache_enable))


def _size(settings: MemoryQoS, memory_limit: int) -> int | None:
    size, percent = settings.page_cache_limit_size, settings.page_cache_limit_percent
    if size is not None:
        return min(size, memory_limit) if memory_limit > 0 else size
    if percent is not None and memory_limit > 0:
        return memory_limit * percent // 100
    return None


def _of_size(size: int | None, *, reclaim: bool) -> PageCacheLimit:
    if size is None:
        return PageCacheLimit()
    if size <= 0:
        return PageCacheLimit(enable=0, size=0)
    return PageCacheLimit(enable=1, size=size, sync=int(reclaim))
