"""Building blocks of the models: linear, rotary embedding, attention."""
