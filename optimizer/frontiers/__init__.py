"""Exact frontiers: the optimum against the deadline, and the Pareto set of two objectives."""
