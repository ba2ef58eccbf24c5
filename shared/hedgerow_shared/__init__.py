"""What both ends must agree on: batches, messages, subjects, errors, models."""

__version__ = "0.1.0"
