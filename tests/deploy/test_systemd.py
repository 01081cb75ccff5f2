"""The unit of host mode: systemd understands it, and it keeps to this machine."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "systemd" / "koordlet.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    """A directive with a wrong name or value would be ignored in silence."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/koordlet/bin/koordletctl", "/bin/true")
                    .replace("/opt/koordlet/bin/koordlet", "/bin/true"))  # fmt: skip

    def complaints() -> list[str]:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return [line for line in done.stderr.splitlines() if UNIT.name in line]

    assert complaints() == []
    unit.write_text(unit.read_text().replace("IPAddressDeny=any", "IPAddressDenied=any"))
    assert any("IPAddressDenied" in line for line in complaints())


def test_it_talks_to_this_machine_only() -> None:
    """Until an administrator names others."""
    found = dict(re.findall(r"^(IPAddress\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))

    assert found == {"IPAddressDeny": "any", "IPAddressAllow": "localhost"}
