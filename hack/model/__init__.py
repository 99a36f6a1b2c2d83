"""Put the demo's language model on a volume of the embedded cluster."""
