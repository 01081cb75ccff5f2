"""Writes the shell completions of the programs that this environment can run."""

import sys

from commandlines.completions import main

if __name__ == "__main__":
    sys.exit(main())
