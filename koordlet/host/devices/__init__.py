"""Devices of the node: RDMA interfaces, and the files that describe those of other vendors."""
