"""Wall-clock time of the engine against what a user would run instead."""
