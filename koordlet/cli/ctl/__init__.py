"""The parts of koordletctl: asking, and one module per command. Only koordletctl uses them."""
