"""The smaller decisions (stages, experts) solved like the main one: wiring, documents."""
