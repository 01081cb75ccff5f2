"""The table of kernel objects that are not files: each kind, and its value.

Claims, plans, journal, dry-run, explain, conflicts and restore know values as texts only, so they
work for all kinds. A new kind is two things: a module in koordlet.host with its reader, its writer
and the Text of its value, and its row here: an ObjectKind and the Resource of that root. Only the
executor gets a writer, by koordlet.host.object_writers.

A journal may be hostile: a place is checked by the rule of its kind or level, an original by
`File.may_restore`. What passes both is all that a writer is ever asked to set in a restore.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from koordlet.host import cpu_scheduler, resctrl, terway_files
from koordlet.host.net import netfiles
from koordlet.host.net.tc import objects as tc_objects
from koordlet.host.net.tc import tree
from koordlet.host.paths import HostPaths
from koordlet.host.resource import Level, ObjectKind, node_row


class ObjectReader(Protocol):
    """Reads the objects of one kind. For one thread."""

    def path(self, name: str) -> str:
        """Return what messages call the object, and which file system it is on, if on any."""

    def read(self, name: str) -> bytes:
        """Return the object's present state, as a line or more; b"absent\\n" for no object.

        name is what a target calls it: its place.

        Raises:
            Unsupported: this kernel has no such objects, or they are not mounted.
            Vanished: what it is part of has ended: the process, the network interface.
            KernelFileError: it cannot be read.
        """


def make_reader(kind: ObjectKind, paths: HostPaths) -> ObjectReader:
    """Return the reader of the objects of a kind."""
    make: Callable[[HostPaths], ObjectReader] = getattr(import_module(kind.module), kind.reader)
    return make(paths)


COOKIES = ObjectKind(
    Level.PROCESS,
    "koordlet.host.cpu_scheduler",
    reader="CookieReader",
    writer="CookieWriter",
    directory="/proc/",
)
CORE_SCHED_COOKIE = node_row(
    "core_sched_cookie",
    "core scheduling cookie of a process, 0 for none, -1 for a new one",
    "{} (core scheduling cookie)",
    cpu_scheduler.parse_cookie,
    COOKIES,
    shows=cpu_scheduler.is_cookie,
    text=cpu_scheduler.COOKIE_TEXT,
    needs=cpu_scheduler.CORE_SCHED_NEEDS,
)

RESCTRL_GROUPS = ObjectKind(
    Level.RESCTRL,
    "koordlet.host.resctrl",
    reader="ResctrlGroupReader",
    writer="ResctrlGroupWriter",
    is_place=resctrl.is_group_name,
    directory="/sys/fs/resctrl/{}",
)
RESCTRL_GROUP = node_row(
    "resctrl_group",
    "present or absent",
    "",
    resctrl.parse_presence,
    RESCTRL_GROUPS,
    text=resctrl.PRESENCE_TEXT,
    needs=resctrl.RESCTRL_NEEDS,
)

RESCTRL_MEMBERSHIPS = ObjectKind(
    Level.PROCESS,
    "koordlet.host.resctrl",
    reader="ResctrlTaskReader",
    writer="ResctrlTaskWriter",
    directory="/proc/",
)
RESCTRL_TASKS = node_row(
    "resctrl_tasks",
    "control group that a process is in; / for the default one",
    "{}/cpu_resctrl_groups",
    resctrl.parse_membership,
    RESCTRL_MEMBERSHIPS,
    text=resctrl.MEMBERSHIP_TEXT,
    needs=resctrl.MEMBERSHIP_NEEDS,
)

TRAFFIC_TREES = ObjectKind(
    Level.INTERFACE,
    "koordlet.host.net.tc.objects",
    reader="TrafficReader",
    writer="TrafficWriter",
    is_place=netfiles.is_interface_name,
    in_node_network=True,
)
TRAFFIC_CLASSES = node_row(
    "traffic_classes",
    "classes at the root of an interface in bytes/s, and the addresses whose packets they take",
    "{} (traffic classes)",
    tree.parse_traffic,
    TRAFFIC_TREES,
    may=tree.is_tree,
    shows=tree.is_kernel_state,
    text=tree.TRAFFIC,
    needs=tree.NEEDS,
)

VETH_PEERS = ObjectKind(
    Level.PROCESS,
    "koordlet.host.net.tc.objects",
    reader="VethPeerReader",
    directory="/proc/",
    in_node_network=True,
)
PROCESS_INTERFACE = node_row(
    "process_interface",
    "the node's end of a process's virtual interface (veth); empty: none",
    "{} (end of its interface)",
    netfiles.parse_interface,
    VETH_PEERS,
    needs=tree.NODE_NETWORK,
)

SOCKET_CGROUPS = ObjectKind(
    Level.PROCESS,
    "koordlet.host.net.tc.objects",
    reader="SocketCgroupReader",
    directory="/sys/fs/cgroup/",
    in_node_network=True,
)
SOCKET_GROUP = node_row(
    "socket_group",
    "level and number of a cgroup of v2 by which packets of the node's own sockets are told",
    "{} (cgroup of sockets)",
    tc_objects.parse_socket_cgroup,
    SOCKET_CGROUPS,
    needs=tc_objects.CGROUP_MAP_NEEDS,
)

NODE_FILE, PODS_FILE = "global_bps_config", "pod.json"  # of the agent terway-qos


def is_terway_file(name: str) -> bool:
    """Whether a file is one of the two; no other one is read or written."""
    return name in (NODE_FILE, PODS_FILE)


TERWAY_FILES = ObjectKind(
    Level.TERWAY,
    "koordlet.host.terway_files",
    reader="TerwayFileReader",
    writer="TerwayFileWriter",
    is_place=is_terway_file,
    directory="/var/lib/terway/qos/",
)
TERWAY_FILE = node_row(
    "terway_file",
    "text of a file of the agent terway-qos: rates in bytes/s, or pods",
    "{} (file of terway-qos)",
    terway_files.parse_terway_file,
    TERWAY_FILES,
    may=terway_files.is_terway_content,
    shows=terway_files.may_have_been_found,
    text=terway_files.CONTENT_TEXT,
    needs=terway_files.TERWAY_NEEDS,
)

KINDS: tuple[ObjectKind, ...] = tuple(
    row for row in list(globals().values()) if isinstance(row, ObjectKind)
)
