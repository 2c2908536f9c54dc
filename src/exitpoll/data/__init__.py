"""From files, folders, the hub and known tasks to labelled texts in three splits, and back to files."""
