"""The audit log: every change that koordlet makes to the node, one line of JSON each.

The record, the file names, paging and the HTTP response are Koordinator's.
"""
