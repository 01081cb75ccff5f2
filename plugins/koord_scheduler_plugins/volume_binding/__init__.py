"""VolumeBinding: pods go where their volumes are, can be bound, or can be made."""

from koord_scheduler_plugins.volume_binding.plugin import VolumeBinding

__all__ = ["VolumeBinding"]
