"""The OpenAI-style HTTP API: validation, admission, streaming. No torch, no scheduling."""
