"""Ragged attention behind one interface: `plan` once per batch, `run` once per layer."""
