"""Reports the node's measurements and topology to the cluster; never re-stamps old samples."""
