"""`make demo`: from an empty machine to an answer from a model on Kubernetes."""
