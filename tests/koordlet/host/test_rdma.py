"""RDMA interfaces on a fake sysfs: which count, where they are, and their device files."""

import shutil
from pathlib import Path

import pytest

from koordlet.host.devices import (
    DeviceFile,
    pci_address,
    pci_topology,
    rdma_files,
    read_rdma_interfaces,
)
from koordlet.host.errors import KernelFileError, NoSuchDevice
from koordlet.rules.devices import DeviceTopology, RdmaInterface
from tests.support.node.nvml_stub import add_pci_device

CARD, FUNCTION, OTHER = "0000:09:00.0", "0000:09:00.2", "0000:09:00.3"


class Sysfs:
    """A /sys on which cards with RDMA can be put."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def card(self, name: str, address: str, *, pci_class: str = "0x020000", numa: int = 1) -> Path:
        real = add_pci_device(self.root, address, numa=numa, root="pci0000:00")
        (real / "class").write_text(f"{pci_class}\n")
        self.verbs(real, name)
        device = real / "infiniband" / name
        device.mkdir(parents=True)
        self.port(device, "1", "4: ACTIVE")
        classes = self.root / "class/infiniband"
        classes.mkdir(parents=True, exist_ok=True)
        (classes / name).symlink_to(device)
        (device / "device").symlink_to(real)
        return real

    def verbs(self, real: Path, name: str) -> None:
        number = name.rpartition("_")[2]
        directory = real / "infiniband_verbs" / f"uverbs{number}"
        directory.mkdir(parents=True)
        (directory / "dev").write_text(f"231:{192 + int(number)}\n")

    def port(self, device: Path, number: str, state: str) -> None:
        (device / "ports" / number).mkdir(parents=True)
        (device / "ports" / number / "state").write_text(f"{state}\n")

    def function(self, card: Path, name: str, address: str, number: int) -> Path:
        """A virtual function of a card, itself with RDMA."""
        real = self.card(name, address)
        (card / f"virtfn{number}").symlink_to(real)
        (real / "physfn").symlink_to(card)
        return real


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path / "sys")


def test_a_host_without_any(sysfs: Sysfs) -> None:
    assert read_rdma_interfaces(sysfs.root) == ()


def test_a_card_and_its_functions(sysfs: Sysfs) -> None:
    """Functions are listed with their card, by address, and not as interfaces."""
    card = sysfs.card("mlx5_0", CARD)
    sysfs.function(card, "mlx5_3", OTHER, 1)
    sysfs.function(card, "mlx5_2", FUNCTION, 0)
    assert read_rdma_interfaces(sysfs.root) == (
        RdmaInterface(
            name="mlx5_0",
            minor=0,
            topology=DeviceTopology(1, "pci0000:00", CARD),
            functions=(FUNCTION, OTHER),
            ports=1,
        ),
    )


@pytest.mark.parametrize(
    ("state", "idle"),
    [("4: ACTIVE", ()), ("1: DOWN", (2,)), ("2: INIT", (2,)), ("nonsense", (2,))],
)
def test_all_ports_have_to_be_active(sysfs: Sysfs, state: str, idle: tuple[int, ...]) -> None:
    card = sysfs.card("mlx5_0", CARD)
    sysfs.port(card / "infiniband/mlx5_0", "2", state)
    assert read_rdma_interfaces(sysfs.root)[0].idle_ports == idle


@pytest.mark.parametrize("name", ["rxe0", "mlx5_bond_0", "mlx5_", "xmlx5_0", "mlx5_0;rm"])
def test_other_names_do_not_count(sysfs: Sysfs, name: str) -> None:
    classes = sysfs.root / "class/infiniband"
    classes.mkdir(parents=True)
    (classes / name).mkdir()
    assert read_rdma_interfaces(sysfs.root) == ()


def test_other_classes_do_not_count(sysfs: Sysfs) -> None:
    sysfs.card("mlx5_0", CARD, pci_class="0x030200")
    assert read_rdma_interfaces(sysfs.root) == ()


def test_software_rdma_does_not_count(sysfs: Sysfs) -> None:
    (sysfs.root / "class/infiniband/mlx5_7/device").mkdir(parents=True)
    assert read_rdma_interfaces(sysfs.root) == ()


def test_no_numa_node_counts_as_the_first(sysfs: Sysfs) -> None:
    sysfs.card("mlx5_0", CARD, numa=-1)
    assert read_rdma_interfaces(sysfs.root)[0].topology.numa_node == 0


def test_one_that_vanishes_while_it_is_read_is_not_half_there(sysfs: Sysfs) -> None:
    card = sysfs.card("mlx5_0", CARD)
    (card / "infiniband/mlx5_0/ports/1/state").unlink()
    with pytest.raises(KernelFileError):
        read_rdma_interfaces(sysfs.root)


def test_device_files_are_those_of_the_kernel(sysfs: Sysfs) -> None:
    card = sysfs.card("mlx5_0", CARD)
    sysfs.function(card, "mlx5_2", FUNCTION, 0)
    manager = sysfs.root / "class/misc/rdma_cm"
    manager.mkdir(parents=True)
    (manager / "dev").write_text("10:58\n")
    assert rdma_files(sysfs.root, [CARD, FUNCTION, CARD]) == (
        DeviceFile("/dev/infiniband/rdma_cm", 10, 58),
        DeviceFile("/dev/infiniband/uverbs0", 231, 192),
        DeviceFile("/dev/infiniband/uverbs2", 231, 194),
    )
    for address in ("0000:7f:00.0", "../../../etc", "", CARD + "/../.."):
        with pytest.raises(NoSuchDevice):
            rdma_files(sysfs.root, [address])


def test_hostile_names_of_device_files_do_not_count(sysfs: Sysfs) -> None:
    card = sysfs.card("mlx5_0", CARD)
    (card / "infiniband_verbs/uverbs0").rename(card / "infiniband_verbs/uverbs0.")
    (sysfs.root / "class/misc/rdma_cm").mkdir(parents=True)
    (sysfs.root / "class/misc/rdma_cm/dev").write_text("10:58\n")
    with pytest.raises(NoSuchDevice):
        rdma_files(sysfs.root, [CARD])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("00010000:3b:1f.7", "10000:3b:1f.7"),
    ],
)
def test_addresses_in_the_kernels_form(text: str, address: str) -> None:
    assert pci_address(text) == address


@pytest.mark.parametrize("text", ["", "..", "3b:00.0", "0000:3b:00.8", "0000:3b:20.0", "0000/3b"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="wanted a PCI address"):
        pci_address(text)


def test_the_root_complex_is_the_first_of_the_path(sysfs: Sysfs) -> None:
    add_pci_device(sysfs.root, "0000:3b:00.0", numa=1, root="pci0000:3a/0000:3a:00.0")
    found = pci_topology(sysfs.root, "00000000:3B:00.0")
    assert found == DeviceTopology(1, "pci0000:3a", "0000:3b:00.0")
    assert pci_topology(sysfs.root, "0000:77:00.0") is None


def test_an_interface_without_ports_is_not_active(sysfs: Sysfs) -> None:
    """As in Koordinator: no port has said that it is."""
    sysfs.card("mlx5_0", CARD)
    shutil.rmtree(sysfs.root / "class/infiniband/mlx5_0/ports")
    [interface] = read_rdma_interfaces(sysfs.root)
    assert not interface.active
