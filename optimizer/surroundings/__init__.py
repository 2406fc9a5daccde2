"""What surrounds the cards: connection state and set-up, rewiring, and who starts requests."""
