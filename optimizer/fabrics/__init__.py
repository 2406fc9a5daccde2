"""Fabrics as directed links: what joins cards, which way messages go, what each link carries."""
