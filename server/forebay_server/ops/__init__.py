"""Probes, progress, metrics and load: a small process that nothing heavy can hold up, and what it reads."""
