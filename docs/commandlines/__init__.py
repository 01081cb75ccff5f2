"""The command lines of the installed programs: their parsers, and completions made from them."""
