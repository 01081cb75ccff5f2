"""Modes of taking koord-manager's roles."""

from enum import StrEnum


class ManagerRoleMode(StrEnum):
    """Mode of the manager roles: the value of --manager-duties."""

    AUTO = "auto"  # while no koord-manager is seen
    ON = "on"
    OFF = "off"
