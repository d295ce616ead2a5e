"""One run, from its start or from its checkpoint, to the end of its schedule."""
