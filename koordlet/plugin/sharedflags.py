"""Flags of Koordinator that several plugins share."""

from koord.component.flags import Flag, FlagSet


def strategy_interval(flags: FlagSet) -> Flag[int]:
    """Define, or find, the flag for the seconds between two rounds of a reconciling plugin."""
    return flags.shared().int(
        "reconcile-interval-seconds",
        1,
        "Seconds between two rounds of CPUBurst, CgroupReconcile and SystemConfig",
        check=lambda seconds: "" if seconds >= 1 else "use 1 or more",
    )
