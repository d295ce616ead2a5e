"""Read tables of runs, fit power laws, and estimate the compute multiplier with its interval. Needs no torch."""
