"""The loop: takes pods from the queue, finds a node for each, and has it bound there."""
