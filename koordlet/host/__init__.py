"""The kernel's interfaces as typed tables, parsers and reads; never writes and never decides."""
