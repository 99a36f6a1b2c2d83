"""The two ways in which a cluster command fails, each with a message that says what to do."""

from pathlib import Path


class ClusterError(Exception):
    """Something that the caller can act on; its text is all that is printed."""


class ComponentError(ClusterError):
    """A component did not become healthy.

    Attributes:
        component: its name, as in `logs NAME`.
        log: the file that its output goes to.
    """

    def __init__(self, component: str, reason: str, log: Path) -> None:
        super().__init__(f"{component}: {reason}")
        self.component = component
        self.log = log
