"""Checks of the kernels' arguments: one function a kernel, on shapes, strides, dtypes and devices alone."""
