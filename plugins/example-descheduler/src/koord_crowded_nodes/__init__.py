"""Plugins for koord-descheduler: CrowdedNodes and GentleEvictor."""
