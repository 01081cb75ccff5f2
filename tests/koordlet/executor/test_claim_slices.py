"""Thousands of claims leave the event loop to others now and then."""

import asyncio

from koord.util.timebudget import SLICE
from koordlet.executor.claimmanager import ClaimManager
from koordlet.executor.claims.claim import ApplyResult, Claim, ClaimScope, ClaimState, Target
from koordlet.executor.kernel.view import InlineWorker
from koordlet.host.resource import Level
from koordlet.host.resources import CPU_SHARES
from koordlet.plugin.testing import SimulatedClock


class Obliging:
    """Has every desired value in force at once."""

    def apply(self, desired_values):
        return [
            ApplyResult(ClaimState.IN_FORCE, desired.value, wrote=True)
            for desired in desired_values
        ]

    def sweep(self):
        return []


async def acting(_):
    return False


async def test_many_claims_are_settled_in_slices():
    """Checked, looked up and concluded, with turns for others in between, and all in force."""
    manager = ClaimManager(Obliging(), InlineWorker(), SimulatedClock(), dry_run=acting)
    manager.declare("P", (ClaimScope(CPU_SHARES, Level.POD),))
    claims = [
        Claim(
            target=Target(Level.POD, f"kubepods/pod{number}"),
            resource=CPU_SHARES,
            value=1024,
            reason="test",
        )
        for number in range(5 * SLICE)
    ]
    settling = asyncio.create_task(manager.claim_all("P", claims))
    turns = 0
    while not settling.done():
        turns += 1
        await asyncio.sleep(0)

    assert {outcome.state for outcome in settling.result()} == {ClaimState.IN_FORCE}
    assert turns >= 3 * 5
    assert len(await manager.snapshot_in_slices()) == len(claims)
