"""Mount points lead to disks, on machines built in a directory."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.storage import parse_mountinfo, read_local_storage, volume_group

DATA = Path(__file__).parent / "data"


class Block:
    """Builds /sys/block and the mounts of pid 1."""

    def __init__(self, root: Path) -> None:
        self.sys, self.proc = root / "sys", root / "proc"

    def device(self, name: str, number: str, **files: str) -> Path:
        directory = self.sys / "block" / name
        for path, text in {"dev": number, **files}.items():
            file = directory / path.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
        return directory

    def partition(self, name: str, of: str, number: str) -> None:
        self.device(f"{of}/{name}", number, partition="1")

    def volume(
        self, name: str, number: str, dm_name: str, *slaves: str, uuid: str = "LVM-x"
    ) -> None:
        directory = self.device(name, number, dm__name=dm_name, dm__uuid=uuid)
        for slave in slaves:
            (directory / "slaves" / slave).mkdir(parents=True)

    def mounts(self, *lines: str) -> None:
        (self.proc / "1").mkdir(parents=True)
        text = "".join(f"{number} 1 {line}\n" for number, line in enumerate(lines))
        (self.proc / "1/mountinfo").write_text(text)

    def read(self):
        return read_local_storage(self.sys, self.proc)


@pytest.fixture
def block(tmp_path):
    return Block(tmp_path)


def test_disks_and_partitions(block):
    """Partitions belong to the disk they are nested in, whatever their minor number."""
    block.device("vdc", "253:32")
    block.partition("vdc3", "vdc", "253:35")
    block.device("nvme0n1", "259:0")
    block.partition("nvme0n1p1", "nvme0n1", "259:17")
    block.device("cciss!c0d0", "104:0")

    storage = block.read()

    assert storage.disk_number["/dev/vdc"] == "253:32"
    assert storage.number_disk["259:0"] == "/dev/nvme0n1"
    assert storage.partition_disk == {
        "/dev/vdc3": "/dev/vdc",
        "/dev/nvme0n1p1": "/dev/nvme0n1",
    }


def test_what_is_not_a_disk(block):
    """Loop devices, arrays, optical drives and single paths of a multipath disk."""
    block.device("loop0", "7:0")
    block.device("md0", "9:0")
    block.device("sr0", "11:0", device__type="5")
    block.device("sda", "8:0", device__type="0")
    block.device("nvme0c0n1", "259:3", hidden="1")
    (block.sys / "block/gone").mkdir()

    storage = block.read()

    assert storage.disk_number == {"/dev/sda": "8:0"}
    assert storage.whole_number.items() >= {"/dev/loop0": "7:0", "/dev/md0": "9:0"}.items()


def test_a_volume_group_on_one_disk(block):
    """The worked example, with the physical volume on a partition."""
    block.device("vdb", "253:16")
    block.partition("vdb1", "vdb", "253:17")
    block.volume("dm-0", "254:0", "yoda--pool0-yoda--15", "vdb1")
    block.volume("dm-1", "254:1", "yoda--pool0-other", "vdb1")

    storage = block.read()

    assert storage.lv_vg["/dev/mapper/yoda--pool0-yoda--15"] == "yoda-pool0"
    assert storage.vg_disk == {"yoda-pool0": "/dev/vdb"}


def test_thin_pools_and_encryption_are_looked_through(block):
    """The disk is what lies at the bottom of the stack."""
    block.device("sda", "8:0")
    block.volume("dm-0", "254:0", "luks-1", "sda", uuid="CRYPT-LUKS2-x")
    block.volume("dm-1", "254:1", "vg-pool_tdata", "dm-0")
    block.volume("dm-2", "254:2", "vg-pool", "dm-1")
    block.volume("dm-3", "254:3", "vg-thin", "dm-2")

    storage = block.read()

    assert storage.vg_disk == {"vg": "/dev/sda"}
    assert "/dev/mapper/luks-1" not in storage.lv_vg


def test_a_volume_group_on_several_disks_has_no_disk(block):
    """The disk that a volume loads is not known then."""
    block.device("sda", "8:0")
    block.device("sdb", "8:16")
    block.volume("dm-0", "254:0", "vg-a", "sda")
    block.volume("dm-1", "254:1", "vg-b", "sdb")

    assert block.read().vg_disk == {}


def test_a_stack_that_contains_itself_ends(block):
    """No kernel makes one, but a wrong directory must not hang the daemon."""
    block.volume("dm-0", "254:0", "vg-a", "dm-0", "dm-1")
    block.volume("dm-1", "254:1", "vg-b", "dm-0")

    assert block.read().vg_disk == {}


def test_mounts_lead_to_devices(block):
    """By device number where the kernel has one, because the text may be an alias."""
    block.device("vda", "254:0")
    block.partition("vda1", "vda", "254:1")
    block.volume("dm-0", "253:0", "vg-lv", "vda1")
    block.mounts(
        "254:1 / / rw - ext4 /dev/root rw",
        "254:1 /data /srv\\040x rw shared:1 - ext4 /dev/disk/by-uuid/1 rw",
        "253:0 / /var/lib rw - xfs /dev/mapper/vg-lv rw",
        "0:21 / /proc rw master:1 propagate_from:2 - proc proc rw",
        "0:44 / /hidden rw - tmpfs first rw",
        "0:45 / /hidden rw - tmpfs second rw",
    )

    assert block.read().mount_source == {
        "/": "/dev/vda1",
        "/srv x": "/dev/vda1",
        "/var/lib": "/dev/mapper/vg-lv",
        "/proc": "proc",
        "/hidden": "second",
    }


def test_nothing_to_see(block):
    """Without /sys/block and pid 1 all maps are empty."""
    storage = block.read()

    assert not storage.disk_number
    assert not storage.mount_source


@pytest.mark.parametrize(
    ("volume", "group"),
    [
        ("yoda--pool0-yoda--15", "yoda-pool0"),
        ("vg-lv", "vg"),
        ("a---b", "a-"),
        ("a--b--c-d", "a-b-c"),
        ("alone", "alone"),
    ],
)
def test_volume_group_names(volume, group):
    """Doubled hyphens belong to a name, a single one separates."""
    assert volume_group(volume) == group


NAMES = st.from_regex(r"[a-z0-9_.][a-z0-9_.-]{0,8}", fullmatch=True)


@given(NAMES, NAMES)
def test_the_group_of_any_volume(group, volume):
    """Whatever the names, the group is found again."""
    assert volume_group(group.replace("-", "--") + "-" + volume.replace("-", "--")) == group


def test_mountinfo_of_a_real_host():
    """A cgroup v1 machine."""
    mounts = parse_mountinfo((DATA / "mountinfo").read_bytes())

    assert [mount.source for mount in mounts if mount.target == "/"] == ["/dev/vda"]
    assert {mount.options for mount in mounts if mount.kind == "cgroup"} >= {"rw,cpu", "rw,memory"}


@pytest.mark.parametrize("data", [b"\n", b"1 2 3\n", b"1 2 0:1 / / rw ext4 x rw\n", b"1 2 3 - a\n"])
def test_not_a_mount(data):
    """A line that is cut off or has no separator."""
    with pytest.raises(ValueError, match="wanted a mount"):
        parse_mountinfo(data)


@given(st.binary(max_size=120) | st.text("1 /-\\04a\n", max_size=60).map(str.encode))
def test_any_bytes_are_mounts_or_a_value_error(data):
    """Escapes that are none, and lines of any length."""
    with contextlib.suppress(ValueError):
        assert all(mount.target for mount in parse_mountinfo(data))


@pytest.mark.skipif(not shutil.which("lsblk"), reason="no lsblk to compare with")
def test_the_disks_are_those_of_lsblk():
    """On this machine, whatever it has."""
    command = ["lsblk", "-P", "-o", "NAME,TYPE,MAJ:MIN"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split('"')[1::2] for line in text.splitlines()]

    storage = read_local_storage(Path("/sys"), Path("/proc"))

    assert storage.disk_number == {f"/dev/{name}": at for name, kind, at in rows if kind == "disk"}
    assert set(storage.partition_disk) == {f"/dev/{row[0]}" for row in rows if row[1] == "part"}
