"""Images of this tree for tests: bases, builds, tar files."""
