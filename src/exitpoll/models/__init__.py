"""Encoders walked layer by layer, heads, and EarlyExitModel, which puts them together."""
