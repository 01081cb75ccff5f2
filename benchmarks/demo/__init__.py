"""The loop of the control plane's daemons on a small cluster in memory, shown in a terminal."""
