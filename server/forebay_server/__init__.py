"""The serving engine and its OpenAI-style API."""
