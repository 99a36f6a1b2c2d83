"""`forebay quantize`: writes quantized checkpoints, one method a file."""
