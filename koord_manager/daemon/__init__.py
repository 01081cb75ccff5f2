"""The daemon: builds and wires everything; start and stop order."""
