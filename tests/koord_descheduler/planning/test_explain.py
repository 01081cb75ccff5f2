"""Explain: what the last cycles decided, over HTTP, and the command that asks for it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from koord_descheduler import planning
from koord_descheduler.cli.descheduler import main
from koord_descheduler.framework.evictor import KEPT_CYCLES, Action, Decisions, Findings
from koord_descheduler.planning import Question, explain_handler, explanation
from koord_descheduler.plugin.testing import make_pod

AT = 1_784_875_965.0  # 2026-07-24T06:52:45Z


def decided(*, cycles: int = 2) -> Decisions:
    """In each cycle n1 was hot, a pod of it went to n2 or n3, and another one stayed."""
    found = Decisions()
    for number in range(cycles):
        found.begin(AT + 10 * number)
        findings = Findings("p", "Load")
        findings.node("n1", "high", "cpu 90%", facts={"cpu": 90.0}, hint="cpu above 90")
        findings.node("n2", "low", "cpu 10%")
        web_pod, db = make_pod("web", node="n1"), make_pod("db", node="n1", namespace="data")
        findings.pod(web_pod, Action.EVICT, "hot", candidates=["n2", "n3"])
        findings.pod(db, Action.STAY, "it has local storage")
        found.publish(findings)
    return found


def pods(answer: dict[str, Any]) -> list[list[str]]:
    return [[one["pod"] for one in cycle["pods"]] for cycle in answer["cycles"]]


@pytest.mark.parametrize(
    ("question", "nodes", "wanted"),
    [
        (Question(node="n1"), ["n1"], ["default/web", "data/db"]),
        (Question(node="n2"), ["n2"], ["default/web"]),  # a candidate
        (Question(node="n9"), [], []),
        (Question(pod="data/db"), [], ["data/db"]),
        (Question(pod="db"), [], ["data/db"]),
        (Question(pod="default/db"), [], []),
        (Question(), ["n1", "n2"], ["default/web", "data/db"]),
    ],
)
def test_only_the_subject_newest_cycle_first(
    question: Question, nodes: list[str], wanted: list[str]
) -> None:
    answer = explanation(decided().cycles, question, is_leader=True)

    assert [one["began"] for one in answer["cycles"]] == [
        "2026-07-24T06:52:55Z",
        "2026-07-24T06:52:45Z",
    ]
    assert [one["node"] for one in answer["cycles"][0]["nodes"]] == nodes
    assert pods(answer) == [wanted, wanted]


def test_so_many_cycles_and_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond is counted."""
    monkeypatch.setattr(planning, "MAX_PER_CYCLE", 1)
    answer = explanation(decided(cycles=20).cycles, Question(node="n1"), is_leader=True)

    assert len(answer["cycles"]) == KEPT_CYCLES
    assert pods(answer)[0] == ["default/web"]
    assert answer["cycles"][0]["leftOut"] == 1


class Served:
    """A koord-descheduler, as far as it explains."""

    def __init__(self) -> None:
        self.decisions, self.is_leader = decided(), True
        self.url = ""

    async def run(self, *argv: str, address: str = "") -> int:
        """The command, in another thread than the server."""
        given = ["explain", "--address", address or self.url, *argv]
        return await asyncio.to_thread(_in_thread, given)


def _in_thread(argv: list[str]) -> int:
    from koord_descheduler.cli.explain import main as command  # the other one takes signals

    return command(argv[1:])


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    found = Served()
    app = web.Application()
    app.router.add_get("/explain", explain_handler(found.decisions, lambda: found.is_leader))
    async with TestServer(app) as server:
        found.url = str(server.make_url("")).rstrip("/")
        yield found


async def test_the_command_shows_a_node(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert await served.run("n1") == 0

    out, err = capsys.readouterr()
    assert out.splitlines()[:11] == [
        "2 cycles are known, 2 have looked at n1",
        "",
        "cycle of 2026-07-24T06:52:55Z",
        "",
        "NODE  VERDICT  BY    WHY      WOULD CHANGE WITH",
        "n1    high     Load  cpu 90%  cpu above 90",
        "",
        "EVICT        FROM  TO ONE OF  BY    WHY",
        "default/web  n1    n2, n3     Load  hot",
        "",
        "STAYS    ON  OUTCOME  BY    WHY",
    ]
    assert not err


async def test_the_command_prints_json(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert await served.run("data/db", "-o", "json") == 0

    assert pods(json.loads(capsys.readouterr().out)) == [["data/db"], ["data/db"]]


async def test_a_replica_that_does_not_lead_says_so(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.is_leader = False
    assert await served.run("n1") == 0

    assert "is not the leader: it decides nothing" in capsys.readouterr().err


async def test_nobody_at_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert await Served().run("n1", address="127.0.0.1:1") == 1

    assert "Connection refused; is it running" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        (403, "no", "found 403, it does not let this user ask; give --token-file"),
        (200, "[]", "wanted an object of kind Explanation, found 200: []"),
        (200, "[" * 100_000, "wanted an object of kind Explanation, found 200: [["),
        (500, "oh\u001b[2J", "found 500: oh\\x1b[2J"),
    ],
)
async def test_answers_that_are_none(
    status: int, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/explain", answer)
    async with TestServer(app) as server:
        assert await Served().run("n1", address=str(server.make_url("")).rstrip("/")) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--address", "ftp://x"], "--address: found 'ftp://x'; wanted an address such as"),
        (["--address", "http://x:70000"], "wanted an address such as http://127.0.0.1:10251"),
        (["--token-file", "/t"], "a token is sent over https:// only"),
        (["--address", "https://x", "--certificate-authority", "/absent"], "cannot be used"),
        (["--address", "https://x", "--token-file", "/absent"], "cannot be used"),
    ],
)
def test_wrong_options(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "n1", *argv]) == 2
    assert message in capsys.readouterr().err


async def test_a_question_is_bounded(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert await served.run("x" * 1000) == 1
    assert "wanted at most 512 characters" in capsys.readouterr().err


def test_plan_is_a_command_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--from", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("koord-descheduler plan: ")
