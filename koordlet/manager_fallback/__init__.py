"""The roles of a missing koord-manager: the specs of this node's NodeMetric and NodeSLO.

Idle while a koord-manager is seen. The specs themselves come from koord.kube.managedobjects;
this package decides whether they are ours to write, and writes them through koord.kube.
"""

from enum import StrEnum


class ManagerRoleMode(StrEnum):
    """Mode of the manager roles: the value of --manager-duties."""

    AUTO = "auto"  # while no koord-manager is seen
    ON = "on"
    OFF = "off"
