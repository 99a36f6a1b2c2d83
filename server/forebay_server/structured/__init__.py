"""Structured output: what a request asks for, as a grammar, or an error that says why not. No torch."""
