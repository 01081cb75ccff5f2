"""Other agents on the node: while there is one, this one only observes."""
