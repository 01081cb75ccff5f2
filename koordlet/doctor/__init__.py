"""Examines this host for `koordletctl doctor`: features, the gates that need them, and fixes."""
