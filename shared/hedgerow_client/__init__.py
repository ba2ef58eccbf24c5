"""The Python client people import."""
