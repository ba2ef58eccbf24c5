"""The `hedgerow` command: starts services, imports none."""
