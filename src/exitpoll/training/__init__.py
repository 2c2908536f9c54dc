"""From settings and splits to a trained model folder: methods, objectives, stages."""
