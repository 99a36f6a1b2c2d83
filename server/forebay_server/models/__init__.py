"""Model architectures: one file each, in the order in which data flows."""
