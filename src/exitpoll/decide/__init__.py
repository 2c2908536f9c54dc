"""From a trace of every exit's logits to a policy, and what that policy is worth: strategies, thresholds, guarantees."""
