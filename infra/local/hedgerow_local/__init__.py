"""The `hedgerow` command: starts the services on one machine and looks at them. Imports none."""
