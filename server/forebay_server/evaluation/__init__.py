"""`forebay eval`: how far a quantized model's next-token distributions are from the original's, with a verdict."""
