"""Experiments as data and as code: the paper's methods, tables, figures and grid, by runs that are kept."""
