"""The pods of this node: their lists, the guard against wrong ones, and their cgroups."""
