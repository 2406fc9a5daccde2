"""Why nothing fits: the fewest constraints that conflict, and the cheapest ways out."""
