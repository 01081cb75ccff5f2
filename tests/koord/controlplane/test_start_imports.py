"""Modules that a daemon of the control plane does not load at its start."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("daemon", ["koord_scheduler", "koord_descheduler", "koord_manager"])
def test_a_daemon_does_not_load_what_only_its_commands_need(daemon: str) -> None:
    """Tables on a terminal take 4 MiB, and tens of milliseconds of CPU."""
    code = f"import sys, {daemon}.daemon.run; assert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
