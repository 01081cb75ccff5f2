"""Traffic control by a helper process in the node's network namespace, which never cuts it off."""
