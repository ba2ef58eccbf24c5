"""Layers of the models, written once; a device's `Ops` decide how each is computed."""
