"""The smaller decisions solved like the main one: wiring, documents, each one's part."""
