"""Build both container images on a machine without an image registry, and give them to the embedded cluster."""
