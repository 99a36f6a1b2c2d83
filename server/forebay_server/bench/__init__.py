"""`forebay bench`: a load generator for any OpenAI-style endpoint, and figures of the engine by itself."""
