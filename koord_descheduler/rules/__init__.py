"""The rules that several plugins share. Pure."""
