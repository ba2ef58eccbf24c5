"""The worker process: intake, packing, overlap, replies."""
