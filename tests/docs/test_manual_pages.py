"""The manual pages as `man` would show them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PAGES = sorted(Path(__file__).parents[2].joinpath("docs/man").iterdir())


@pytest.fixture
def mandoc():
    found = shutil.which("mandoc")
    if found is None:
        why = "there is no mandoc: apt-get install mandoc"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_fault_that_mandoc_finds(mandoc, page):
    """But its date: a page is of the version that it names."""
    lint = subprocess.run(
        [mandoc, "-T", "lint", "-W", "warning", page], capture_output=True, text=True, check=False
    )
    faults = [line for line in lint.stdout.splitlines() if "missing date" not in line]
    assert faults == []


def test_there_is_a_page_of_each_program():
    assert [page.name for page in PAGES] == [
        "koord-descheduler.8",
        "koord-manager.8",
        "koord-scheduler.8",
        "koordlet.8",
        "koordletctl.1",
        "kubectl-koordlet.1",
    ]
    for page in PAGES:
        text = page.read_text()
        assert ".SH EXIT STATUS" in text
        assert "words" not in {line.rpartition(" ")[2] for line in text.splitlines()}
