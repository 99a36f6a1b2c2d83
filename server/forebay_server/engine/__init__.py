"""The engine: scheduler, KV cache, model runner, sampler, and the process around them."""
