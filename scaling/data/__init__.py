"""Text to token shards (`prepare`) to batches: the same ones for every arm, device count and resume."""
