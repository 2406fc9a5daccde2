"""Collectives as explicit rounds: who sends which chunk to whom, proved by running it, priced."""
