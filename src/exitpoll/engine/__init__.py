"""From a model folder to predictions: runtimes, the scheduler that keeps batches full, traces and prediction files."""
