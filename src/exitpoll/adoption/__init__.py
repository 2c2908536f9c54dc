"""Exits for a classifier that exists already: from texts without labels to a fast model folder with a guarantee."""
