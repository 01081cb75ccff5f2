"""The flags of the runtime hooks: Koordinator's names and defaults."""

import re
from collections.abc import Iterable

from koord.component.flagchecks import lasting, one_of
from koord.component.flagkinds import STRING_LIST
from koord.component.flags import FlagSet
from koord.util.nearest import nearest

STAGES = (
    "PreRunPodSandbox",
    "PreCreateContainer",
    "PreStartContainer",
    "PreUpdateContainerResources",
    "PreRemoveRunPodSandbox",
)
_OTHER_STAGES = (
    "PostStartContainer",
    "PostStopContainer",
    "PostStopPodSandbox",
)
_LIBRARY = re.compile(r"(/[A-Za-z0-9_.+-]+){2,32}")  # the loader splits at blanks and colons
_LONGEST = (2**62 - 1) / 1e9


class HookFlags:
    """The flags as attributes. Durations are in seconds."""

    def __init__(self, flags: FlagSet) -> None:
        self.nri = flags.bool(
            "enable-nri-runtime-hook",
            True,
            "adjust containers before they start, where the runtime's NRI socket is there",
        )
        self.socket = flags.string(
            "runtime-hooks-nri-socket-path",
            "nri/nri.sock",
            "the NRI socket, below --var-run-root-dir; it must be root's",
            check=_below,
        )
        self.name = flags.string(
            "runtime-hooks-nri-plugin-name",
            "koordlet_nri",
            "name that the runtime logs",
            check=_name,
        )
        self.index = flags.string(
            "runtime-hooks-nri-plugin-index",
            "00",
            "place among NRI plugins, which are called in this order",
            check=_two_digits,
        )
        self.connect_timeout = flags.duration(
            "runtime-hooks-nri-connect-timeout",
            6.0,
            "time to register, and to live for a connection after which pauses are short again",
            check=lasting(0.1),
        )
        self.backoff = flags.duration(
            "runtime-hooks-nri-backoff-duration",
            1.0,
            "first pause before connecting again",
            check=lasting(0.1),
        )
        self.backoff_factor = flags.float(
            "runtime-hooks-nri-backoff-factor",
            2.0,
            "growth of the pause",
            check=lambda value: "" if 1 <= value <= 100 else "use 1 to 100",
        )
        self.backoff_cap = flags.duration(
            "runtime-hooks-nri-backoff-cap",
            _LONGEST,
            "longest pause, and never more than a minute",
            check=lasting(0.1),
        )
        self.failure_policy = flags.string(
            "runtime-hooks-plugin-failure-policy",
            "Ignore",
            "Fail: when a plugin cannot use a pod's annotations its container is not made; Ignore: "
            "it is made without that plugin's settings",
            check=one_of("Fail", "Ignore"),
        )
        self.disabled_stages = flags.define(
            "runtime-hooks-disable-stages",
            STRING_LIST,
            (),
            "stages to skip; repeat the flag",
            check=_stages,
        )
        self.hami_library = flags.string(
            "hami-core-library-directory-path",
            "/usr/local/vgpu/libvgpu.so",
            "HAMi-core's library on the node, which GPUEnvInject mounts into containers",
            check=_library,
        )
        self.runtime = flags.string(
            "default-runtime-type",
            "containerd",
            "runtime of containers, for their ids",
            check=one_of("containerd", "docker", "pouch", "cri-o"),
        )


def _below(value: str) -> str:
    parts = value.strip("/").split("/")
    return "use a path without .." if not value.strip("/") or ".." in parts else ""


def _name(value: str) -> str:
    usable = 0 < len(value) <= 64 and value.isascii() and value.isprintable() and " " not in value
    return "" if usable else "use up to 64 printable characters"


def _library(value: str) -> str:
    usable = _LIBRARY.fullmatch(value) and not {".", ".."} & set(value.split("/"))
    return "" if usable else "use an absolute path in a directory, of letters, digits and _.+-"


def _two_digits(value: str) -> str:
    usable = len(value) == 2 and value.isascii() and value.isdigit()
    return "" if usable else "use two digits, for example 00"


def _stages(values: Iterable[str]) -> str:
    known = (*STAGES, *_OTHER_STAGES)
    wrong = next((value for value in values if value and value not in known), None)
    return "" if wrong is None else f"the nearest to {wrong} is {nearest(wrong, known)}"
