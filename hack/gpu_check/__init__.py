"""What is tried first on a GPU: `hack/gpu_check.sh`."""
