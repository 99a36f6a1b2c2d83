"""What is known beforehand: accelerators and well-known models, as data files with their sources."""

from forebay_operator.catalogue.accelerator_profile import AcceleratorProfile, FormatSupport

__all__ = ["AcceleratorProfile", "FormatSupport"]
