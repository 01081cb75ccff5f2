"""The files of idle page tracking."""

BITMAP = "kernel/mm/page_idle/bitmap"  # below /sys: a bit for each page frame
FLAGS, OWNERS = "kpageflags", "kpagecgroup"  # below /proc: 8 bytes for each
COUNTS = (FLAGS, OWNERS)
NEEDS = "CONFIG_IDLE_PAGE_TRACKING, which few distributions have, and /sys writable"
