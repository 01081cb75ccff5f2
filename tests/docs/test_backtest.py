"""The worked example of docs/backtest.md prints what the page has."""

import re
from pathlib import Path

import pytest

from koord_descheduler.cli.replay import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/backtest.md").read_text()
EXAMPLES = re.findall(r"```\n\$ koord-descheduler replay ([^\n]*)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("options", "output"), EXAMPLES, ids=[one for one, _ in EXAMPLES])
def test_a_replay_prints_what_the_page_has(
    options: str,
    output: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the beginning; the page may leave out the end."""
    monkeypatch.chdir(ROOT)
    assert main(options.split()) == 0

    printed = capsys.readouterr()
    lines = [line.rstrip() for line in printed.out.splitlines()]
    wanted = output.splitlines()
    assert lines[: len(wanted)] == wanted
    progress = re.compile(r"replaying docs/examples/cluster-record: \d+ %")
    assert all(progress.fullmatch(line) for line in printed.err.splitlines())


def test_the_page_has_both_examples() -> None:
    """Otherwise nothing was tested."""
    assert len(EXAMPLES) == 2
