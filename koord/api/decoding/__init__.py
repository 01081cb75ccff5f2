"""Decodes JSON from outside into typed values, by the rules of Go and of Koordinator."""
