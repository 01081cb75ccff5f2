"""Backtest: records of a cluster, and other configurations played on them."""
