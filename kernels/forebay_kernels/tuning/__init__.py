"""Launch options that were measured on a GPU, and what measures them. Nothing is tuned while serving."""
