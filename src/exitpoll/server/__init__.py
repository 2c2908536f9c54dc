"""HTTP: every text answered when it exits, in the dialects of existing clients."""
