"""The one way in which building or pushing an image fails."""


class ImageError(RuntimeError):
    """What failed, where, and what to do; its text is all that is printed."""
