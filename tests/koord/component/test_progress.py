"""How far a long command is, on a terminal and elsewhere."""

import io
import sys

import pytest

from koord.component.terminal import ProgressReport


class Terminal(io.StringIO):
    """Standard error of a user who looks at it."""

    def isatty(self):
        return True


class Seconds:
    """A clock that goes a second with each look."""

    def __init__(self, step=1.0):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.fixture
def terminal(monkeypatch):
    """A terminal that is standard error once it is called for, as pytest sets its own till then."""
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")

    def use():
        monkeypatch.setattr(sys, "stderr", terminal)
        return terminal

    return use


def test_what_is_done_within_a_second_shows_nothing(capsys):
    with ProgressReport("replaying", clock=Seconds(0.01)) as report:
        for done in range(90):
            report.show(done / 90)

    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_there_is_a_line_each_ten_percent(capsys):
    """On stderr: the output is a response, which a program may read."""
    with ProgressReport("replaying", clock=Seconds()) as report:
        for done in range(1, 101):
            report.show(done / 100)

    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "replaying: 1 %",
        *(f"replaying: {tens}0 %" for tens in range(1, 11)),
    ]


def test_shares_outside_their_range_do_no_harm(capsys):
    """A clock that stepped, a file that grew."""
    with ProgressReport("replaying", clock=Seconds()) as report:
        for share in (-1.0, 0.5, 7.0, 0.2):
            report.show(share)

    assert capsys.readouterr().err.splitlines() == [
        "replaying: 0 %",
        "replaying: 50 %",
        "replaying: 100 %",
    ]


def test_on_a_terminal_there_is_a_bar_which_is_gone_at_the_end(terminal):
    terminal = terminal()
    with ProgressReport("restoring 2000 values", clock=Seconds()) as report:
        report.show(0.25)
        report.show(0.5)
        drawn = terminal.getvalue()

    assert "restoring 2000 values" in drawn
    assert "50%" in drawn
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is empty again


def test_a_bar_is_gone_after_an_error_too(terminal):
    terminal = terminal()

    def fail():
        with ProgressReport("replaying", clock=Seconds()) as report:
            report.show(0.5)
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert terminal.getvalue().endswith("\x1b[2K")


def test_a_name_does_not_steer_the_terminal(terminal):
    terminal = terminal()
    with ProgressReport("replaying \x1b[2J[red]x", clock=Seconds()) as report:
        report.show(0.5)

    assert "\x1b[2J" not in terminal.getvalue()
    assert "\\x1b[2J[red]x" in terminal.getvalue()
