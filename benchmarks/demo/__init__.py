"""The loop of koordlet's companions on a small cluster in memory, shown in a terminal."""
