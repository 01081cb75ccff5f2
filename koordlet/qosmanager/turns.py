"""Turns of plugins that may claim the same kernel value: the first switched on has it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from koord.util.errors import OptionError

if TYPE_CHECKING:
    from koordlet.executor.claimmanager import ClaimManager
    from koordlet.executor.claims.claim import ClaimScope


class ClaimTurns:
    """Checks the claim scopes of a plugin that is switched on against those that are on."""

    def __init__(self, claims: "ClaimManager | None", freed: Callable[[], None]) -> None:
        """claims None: nothing can be claimed. freed: called when one that was on no longer is."""
        self._claims = claims
        self._freed = freed

    def take(self, plugin: str, may_claim: "tuple[ClaimScope, ...]") -> str:
        """Let a plugin claim what it declares; return why it may not, empty: it may.

        Calling it again for the plugin that has the turn changes nothing.
        """
        if self._claims is None:
            return ""
        try:
            self._claims.declare(plugin, may_claim)
        except OptionError as err:
            return str(err)
        return ""

    def give_up(self, plugin: str) -> None:
        """End a plugin's turn; call it when its claims are withdrawn."""
        if self._claims is not None and self._claims.retract(plugin):
            self._freed()
