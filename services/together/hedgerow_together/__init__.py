"""A gateway and a worker in one process: the shortest way for a query."""
