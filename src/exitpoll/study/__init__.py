"""The experiments of Sun et al. (2021): what to run, running it, and its tables, comparisons and figures."""
