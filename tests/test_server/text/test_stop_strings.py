"""Stop strings in pieces: the same as in one piece, and never more held back than needed."""

from hypothesis import given
from hypothesis import strategies as st

from forebay_server.text.stop_strings import StopMatcher

few_letters = st.text(alphabet="ab", max_size=30)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=3)


def earliest_stop(text: str, stop: list[str]) -> tuple[str, str | None]:
    """The definition: the stop string that is complete first, of several the longest."""
    for end in range(len(text) + 1):
        found = [one for one in stop if text[:end].endswith(one)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.lists(few_letters, max_size=8), stops)
def test_pieces_give_what_the_definition_says(pieces: list[str], stop: list[str]) -> None:
    matcher = StopMatcher(stop)
    shown = ""
    for index, piece in enumerate(pieces):
        released, found = matcher.push(piece)
        shown += released
        if found is not None:
            expected = earliest_stop("".join(pieces), stop)
            assert (shown, found) == expected
            return
        whole = "".join(pieces[: index + 1])
        held = whole[len(shown) :]
        assert whole.startswith(shown)
        longest = max((n for one in stop for n in range(len(one)) if whole.endswith(one[:n])), default=0)
        assert len(held) == longest, "held back: the longest beginning of a stop string at the end, and no more"
    shown += matcher.flush()
    assert (shown, None) == earliest_stop("".join(pieces), stop)


@given(st.lists(few_letters, max_size=8), stops)
def test_an_included_stop_string_is_the_only_difference(pieces: list[str], stop: list[str]) -> None:
    def run(include: bool) -> tuple[str, str | None]:
        matcher = StopMatcher(stop, include_stop=include)
        shown = ""
        for piece in pieces:
            released, found = matcher.push(piece)
            shown += released
            if found is not None:
                return shown, found
        return shown + matcher.flush(), None

    (without, found), (included, same) = run(False), run(True)
    assert found == same
    assert included == without + (found or "")
