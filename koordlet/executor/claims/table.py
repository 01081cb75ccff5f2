"""The table of claims: by plugin and scope, and by the value they are about. Pure."""

from collections.abc import Iterable, Mapping

from koord.util.errors import OptionError
from koordlet.executor import claimable
from koordlet.executor.claims.claim import Claim, ClaimScope, Key, Part
from koordlet.executor.claims.target import Target

MOST_CLAIMS = 20_000  # of all plugins together

_Slot = tuple[Key, Part]


class ClaimTable:
    """Holds the claims; at most one per value and part. Belongs to one thread."""

    def __init__(self) -> None:
        self._may: dict[str, tuple[ClaimScope, ...]] = {}
        self._scopes: dict[tuple[str, str], dict[_Slot, Claim]] = {}  # by plugin and scope
        self._owners: dict[Key, dict[Part, str]] = {}
        self._claims: dict[Key, dict[Part, Claim]] = {}

    def declare(self, owner: str, may: tuple[ClaimScope, ...]) -> None:
        """Let a plugin claim what it declares, from now until it is retracted.

        Raises:
            OptionError: another plugin may claim the same now, without a rule that combines them,
                or there is nothing that could be claimed so.
        """
        for mine in may:
            if defect := claimable.defect_of(mine):
                raise OptionError(f"{owner} may_claim", f"{mine.part} of {mine.resource}", defect)
            for other, theirs in self._may.items():
                if other != owner and any(mine.overlaps(one) for one in theirs):
                    what = f"{mine.part} of {mine.resource.name} at level {mine.level}"
                    hint = f"{other} is on and may claim it, and no rule combines them; " + (
                        f"switch off {other} or {owner}"
                    )
                    raise OptionError(f"{owner} may_claim", what, hint)
        self._may[owner] = may

    def retract(self, owner: str) -> bool:
        """Let a plugin claim nothing any more; return whether it could claim anything."""
        return bool(self._may.pop(owner, ()))

    def check(self, owner: str, claim: Claim) -> None:
        """Raise OptionError unless the plugin may make this claim."""
        if not isinstance(claim.target, Target):
            hint = "use one of Target.of_pod, of_container, of_process, qos_class and node"
            raise OptionError(f"{owner} claim target", claim.target, hint)
        if not any(may.covers(claim) for may in self._may.get(owner, ())):
            if defect := claimable.resource_defect(claim.resource):
                raise OptionError(f"{owner} claim resource", claim.resource, defect)
            what = f"{claim.part} of {claim.key}, level {claim.target.level}, {claim.target.qos!r}"
            raise OptionError(f"{owner} claim", what, "declare it in may_claim")
        if not claim.reason:
            raise OptionError(f"{owner} claim", f"no reason for {claim.key}", "say the rule")
        if claim.part in (Part.RATIO, Part.EXTRA) and claim.original is None:
            hint = "state the original: what is changed where no plugin claims the value itself"
            raise OptionError(f"{owner} claim", f"{claim.part} of {claim.key}", hint)
        other = self._owners.get(claim.key, {}).get(claim.part, owner)
        if other != owner:
            raise OptionError(f"{owner} claim", f"{claim.part} of {claim.key}", f"{other} has it")

    def has(self, owner: str, scope: str, claim: Claim) -> bool:
        """Whether exactly this claim is there, not one that is equal to it."""
        return self._scopes.get((owner, scope), {}).get((claim.key, claim.part)) is claim

    def put(self, owner: str, scope: str, claim: Claim) -> bool:
        """Add or replace a checked claim; return whether it asks for something new."""
        slot = (claim.key, claim.part)
        parts = self._claims.setdefault(claim.key, {})
        before = parts.get(claim.part)
        if before is None and self.size >= MOST_CLAIMS:
            raise OptionError(f"{owner} claim", claim.key, f"{MOST_CLAIMS} claims are the most")
        parts[claim.part] = claim
        self._owners.setdefault(claim.key, {})[claim.part] = owner
        for (name, other), slots in self._scopes.items():
            if name == owner and other != scope:
                slots.pop(slot, None)  # it moves to the scope that named it last
        self._scopes.setdefault((owner, scope), {})[slot] = claim
        return before is None or before.substance != claim.substance

    def replace(self, owner: str, scope: str, claims: Iterable[Claim]) -> set[Key]:
        """Make these checked claims the scope's; return the values about which that is news."""
        wanted = {(claim.key, claim.part): claim for claim in claims}
        gone = self._scopes.get((owner, scope), {}).keys() - wanted.keys()
        news = {key for key, part in gone if self.drop(owner, key, part)}
        known = self._scopes.get((owner, scope), {})
        for slot, claim in wanted.items():
            if known.get(slot) is not claim and self.put(owner, scope, claim):
                news.add(claim.key)
        return news

    def drop(self, owner: str, key: Key, part: Part) -> bool:
        """Take a claim back; return whether there was one."""
        if self._owners.get(key, {}).get(part) != owner:
            return False
        for (name, _), slots in self._scopes.items():
            if name == owner:
                slots.pop((key, part), None)
        del self._claims[key][part], self._owners[key][part]
        if not self._claims[key]:
            del self._claims[key], self._owners[key]
        return True

    def drop_all(self, owner: str, scope: str | None) -> set[Key]:
        """Take all claims of a scope back, or of all scopes; return what they were about."""
        scopes = [s for name, s in self._scopes if name == owner and scope in (None, s)]
        dropped = {slot for s in scopes for slot in self._scopes.pop((owner, s))}
        for key, part in dropped:
            self.drop(owner, key, part)
        return {key for key, _ in dropped}

    def parts(self, key: Key) -> Mapping[Part, Claim]:
        """The claims on a value."""
        return self._claims.get(key, {})

    def owners(self, key: Key) -> Mapping[Part, str]:
        """The owners of the claims on a value, by part."""
        return self._owners.get(key, {})

    def only_claimed(self, keys: Iterable[Key]) -> set[Key]:
        """Those of the values that are claimed."""
        return {key for key in keys if key in self._claims}

    def claimed(self) -> list[Key]:
        """All values that are claimed, in the order of their first claims."""
        return list(self._claims)

    @property
    def size(self) -> int:
        """Values that are claimed."""
        return len(self._claims)
