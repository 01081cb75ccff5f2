"""Builds what serves: HTTP, the control socket, the certificate, the status."""
