"""Coscheduling: gangs of pods, each placed whole or not at all."""
