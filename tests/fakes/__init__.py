"""Stand-ins that speak our own contracts, for tests."""
