"""The command line: one file for each verb, and what they print."""
