"""The peers of the comparison: how each is set up, and the program that runs it in its own environment."""
