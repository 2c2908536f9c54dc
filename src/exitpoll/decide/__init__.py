"""From a trace of every exit's logits to a policy and what it is worth: strategies, thresholds, guarantees."""
