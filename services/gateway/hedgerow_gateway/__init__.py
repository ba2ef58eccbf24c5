"""Text in, vectors out; never imports torch."""
