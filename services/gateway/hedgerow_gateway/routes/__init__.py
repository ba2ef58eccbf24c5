"""HTTP routes, one file per dialect."""
