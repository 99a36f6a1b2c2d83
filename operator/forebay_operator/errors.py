"""What can go wrong between the operator and the API server, by what helps: waiting, or a change by somebody."""


class ApiError(Exception):
    """The API server answered with an error, or not at all; trying again later may help."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; None: no answer came."""


class GoneError(ApiError):
    """The object is not there, or not the same one any more: nothing to do about it."""


class RefusedError(ApiError):
    """The API server will not have this request (a right, a quota, a rule): somebody must change something."""
