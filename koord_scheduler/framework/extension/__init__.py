"""What Koordinator's FrameworkExtender adds to the framework: further interfaces and hooks."""
