"""Control groups: hierarchies, the tree of pods, and the text of their files."""
