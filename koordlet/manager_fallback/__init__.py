"""The duties of a missing koord-manager for this node's objects; idle while there is one."""
