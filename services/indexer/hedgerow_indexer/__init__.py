"""Bulk: files in, vectors out; speaks to the bus only."""
