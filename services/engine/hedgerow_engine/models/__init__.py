"""One file per family; each builds its layers from `Weights` and runs one ragged batch."""
