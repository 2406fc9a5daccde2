"""Prices of many candidates at once, in arrays: the exact arithmetic stated a second time."""
