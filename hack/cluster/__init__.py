"""A real one-node Kubernetes for developers and CI, from pinned sources; not for production."""
