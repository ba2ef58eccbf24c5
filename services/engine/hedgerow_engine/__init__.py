"""Batch in, LazyTensor out; knows no bus, no text."""
