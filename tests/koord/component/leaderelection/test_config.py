"""Settings of a leader election: times that fit one another, or a message that says how."""

import pytest

from koord.component.leaderelection import ElectionConfig, unique_identity
from koord.util.errors import OptionError

DEFAULT = {"namespace": "koordinator-system", "name": "koord-descheduler", "identity": "a_1"}


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"namespace": ""}, "leader-elect-resource-namespace"),
        ({"name": ""}, "leader-elect-resource-name"),
        ({"identity": ""}, "identity"),
        ({"lease_duration": 0.5}, "leader-elect-lease-duration"),
        ({"lease_duration": float("nan")}, "leader-elect-lease-duration"),
        ({"lease_duration": 1e9}, "leader-elect-lease-duration"),
        ({"renew_deadline": 15.0}, "leader-elect-renew-deadline"),
        ({"renew_deadline": 2.4}, "leader-elect-renew-deadline"),
        ({"retry_period": 0.0}, "leader-elect-retry-period"),
        ({"retry_period": 9.0}, "leader-elect-renew-deadline"),
    ],
)
def test_settings_that_could_have_two_leaders_or_none_are_refused(
    settings: dict[str, object], flag: str
) -> None:
    """As client-go refuses them: lease duration > renew deadline > 1.2 retry periods."""
    with pytest.raises(OptionError, match=flag):
        ElectionConfig(**(DEFAULT | settings))  # type: ignore[arg-type]


def test_defaults_are_those_of_kubernetes() -> None:
    """Lease of 15 s, renewed every 2 s, given up after 10 s."""
    config = ElectionConfig(**DEFAULT)

    assert (config.lease_duration, config.renew_deadline, config.retry_period) == (15, 10, 2)


def test_identities_are_unique_and_begin_with_the_host() -> None:
    """A daemon that starts again on the same host is another candidate."""
    first, second = unique_identity("worker-1"), unique_identity("worker-1")

    assert first != second
    assert first.startswith("worker-1_")
