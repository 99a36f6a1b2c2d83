"""Find a Debian mirror in the machine's own apt sources. Pure, but for reading them.

Both formats of sources.list(5) are read: one line an entry, and deb822.
"""

from dataclasses import dataclass
from pathlib import Path

from hack.images.errors import ImageError

APT_FOLDER = Path("/etc/apt")


@dataclass(frozen=True, slots=True)
class Source:
    """One archive: where it is, which suites of it are used, which components."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


def parse_one_line(text: str) -> list[Source]:
    """Parse a `.list` file: `deb [options] URI SUITE COMPONENT...` on each line."""
    sources: list[Source] = []
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words or words[0] != "deb":
            continue
        rest = words[1:]
        if rest and rest[0].startswith("["):
            end = next((i for i, word in enumerate(rest) if word.endswith("]")), len(rest))
            rest = rest[end + 1 :]
        if len(rest) >= 2:
            sources.append(Source(rest[0], (rest[1],), tuple(rest[2:])))
    return sources


def parse_deb822(text: str) -> list[Source]:
    """Parse a `.sources` file: stanzas of `Field: value`, with continuation lines; disabled ones are left out."""
    sources: list[Source] = []
    for stanza in text.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace() and name:
                fields[name] += " " + line.strip()
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        suites, components = fields.get("suites", "").split(), fields.get("components", "").split()
        sources.extend(Source(uri, tuple(suites), tuple(components)) for uri in fields.get("uris", "").split())
    return sources


def read_sources(folder: Path = APT_FOLDER) -> list[Source]:
    """Read every source that apt on this machine uses."""
    sources: list[Source] = []
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))):
        if path.suffix == ".list" and path.is_file():
            sources.extend(parse_one_line(path.read_text(encoding="utf-8")))
        elif path.suffix == ".sources" and path.is_file():
            sources.extend(parse_deb822(path.read_text(encoding="utf-8")))
    return sources


def debian_mirror(sources: list[Source], suite: str) -> str:
    """Return the address of an archive that carries a Debian suite.

    A mirror carries all of Debian's suites, so one that this machine uses for another suite will do.

    Raises:
        ImageError: none of the sources is a Debian archive.
    """
    archives = [s for s in sources if "main" in s.components and s.uri.startswith(("http://", "https://"))]
    for source in archives:
        if suite in source.suites:
            return source.uri
    for source in archives:
        if source.uri.rstrip("/").endswith("/debian"):
            return source.uri
    raise ImageError(
        f"no Debian archive with the component `main` in {APT_FOLDER}/sources.list or sources.list.d; the base image "
        "is made from Debian packages: use a Debian machine, or build with docker and the Dockerfiles' own base image"
    )
