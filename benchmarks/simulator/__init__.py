"""A discrete-event model of a fleet, driven by the real packer and the real splitter."""
