"""Modes of doing koord-manager's duties."""

from enum import StrEnum


class ManagerRoleMode(StrEnum):
    """--manager-duties."""

    AUTO = "auto"  # while no koord-manager is seen
    ON = "on"
    OFF = "off"
