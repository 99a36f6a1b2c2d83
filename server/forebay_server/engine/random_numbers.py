"""Counter-based random numbers: each is a pure function of its key, so a text never depends on its batch mates."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

PURPOSE_SAMPLE = 0
"""Numbers for different purposes at one position must differ, or they would be correlated."""


def uniform(seed: int, choice_index: int, position: int, purpose: int = PURPOSE_SAMPLE) -> float:
    """A number in [0, 1) for one key; 53 random bits, 2 microseconds.

    Each word of the key is absorbed by one round of the SplitMix64 finalizer (Steele, Lea and Flood 2014, "Fast
    splittable pseudorandom number generators").

    Args:
        seed: of the request; any whole number.
        choice_index: of the choice, so that the choices of one seed differ.
        position: of the token in the answer.
        purpose: what the number is for.
    """
    state = 0
    for word in (seed, choice_index, position, purpose):
        state = _mix(((state ^ word) + _GOLDEN) & _MASK)
    return (state >> 11) * 2.0**-53


def _mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)
