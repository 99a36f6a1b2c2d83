"""RequestError: a question that makes no sense; a model that does not fit is a Refusal, not an error."""


class RequestError(ValueError):
    """A value is missing, unknown or out of range.

    Args:
        key: the field, as its own interface writes it.
        problem: what is wrong and what would be right.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem
