"""The base image comes from the mirror that the machine itself uses."""

from pathlib import Path

import pytest

from hack.images.apt_sources import Source, debian_mirror, parse_deb822, parse_one_line, read_sources
from hack.images.errors import ImageError

ONE_LINE = """
# deb http://old.example/debian buster main
deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib # comment
deb-src http://mirror.example/debian bookworm main
deb [ arch=amd64 ] http://security.example/debian-security bookworm-security main
"""
DEB822 = """Types: deb
# a comment inside
URIs: http://mirror.example/debian
Suites: trixie
  trixie-updates
Components: main
Signed-By: /k.gpg

Types: deb deb-src
URIs: https://a.example/debian https://b.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""


def test_one_line_entries_are_read_with_and_without_options() -> None:
    assert parse_one_line(ONE_LINE) == [
        Source("http://mirror.example/debian", ("bookworm",), ("main", "contrib")),
        Source("http://security.example/debian-security", ("bookworm-security",), ("main",)),
    ]


def test_stanzas_are_read_with_continuation_lines_and_without_disabled_ones() -> None:
    assert parse_deb822(DEB822) == [Source("http://mirror.example/debian", ("trixie", "trixie-updates"), ("main",))]


def test_both_formats_are_found_in_apts_folder(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://one.example/debian bookworm main\n")
    (tmp_path / "sources.list.d" / "two.sources").write_text(DEB822)
    (tmp_path / "sources.list.d" / "three.list.save").write_text("deb http://no.example/debian bookworm main\n")
    assert [source.uri for source in read_sources(tmp_path)] == [
        "http://one.example/debian",
        "http://mirror.example/debian",
    ]


MAIN = ("main",)


@pytest.mark.parametrize(
    ("sources", "mirror"),
    [
        ([Source("http://a/debian", ("trixie",), MAIN), Source("http://b/deb", ("bookworm",), MAIN)], "http://b/deb"),
        (
            [Source("http://x/node", ("nodistro",), MAIN), Source("http://a/debian/", ("trixie",), MAIN)],
            "http://a/debian/",
        ),
    ],
    ids=["the one for the suite", "else any Debian archive"],
)
def test_a_mirror_is_chosen(sources: list[Source], mirror: str) -> None:
    assert debian_mirror(sources, "bookworm") == mirror


@pytest.mark.parametrize(
    "sources",
    [
        [],
        [Source("http://archive.example/ubuntu", ("noble",), MAIN)],
        [Source("cdrom:[Debian]/", ("bookworm",), MAIN)],
        [Source("http://a/debian", ("bookworm",), ("contrib",))],
    ],
)
def test_without_a_debian_archive_the_error_says_what_to_do(sources: list[Source]) -> None:
    with pytest.raises(ImageError, match="use a Debian machine"):
        debian_mirror(sources, "bookworm")
