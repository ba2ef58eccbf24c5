"""Engines side by side, without servers: each in a process of its own, timed in turns."""
