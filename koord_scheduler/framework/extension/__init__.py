"""Interfaces and hooks that Koordinator's FrameworkExtender adds to the framework."""
