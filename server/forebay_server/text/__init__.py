"""Text and tokens: tokenizer, chat template, detokenizer, stop strings. No torch, no HTTP."""
