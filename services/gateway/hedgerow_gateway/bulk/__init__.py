"""The durable bulk lane: jobs in, chunks and results kept in streams, progress and pages out."""
