"""Batch sweeps: one row per point, in a fixed order, resumable, over processes or a cluster."""
