"""The operator: turns an InferenceService into pods that serve, by arithmetic that it shows."""
