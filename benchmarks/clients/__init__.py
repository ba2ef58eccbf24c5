"""Clients that cost little: what they add to a measurement is tens of microseconds."""
