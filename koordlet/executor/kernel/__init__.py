"""Applies desired values to the kernel: plans, orders, writes, reads back, watches."""
