"""Carry this machine's pip settings into the steps of a build without writing them into the image.

A package index of one's own, its certificate authority and timeouts are facts of the machine. They go into a file that
is mounted as a secret while a step runs.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hack.images.errors import ImageError

# Settings that say where packages come from. Others (a target folder, say) would change what is installed.
CARRIED = (
    "index-url",
    "extra-index-url",
    "no-index",
    "find-links",
    "trusted-host",
    "proxy",
    "default-timeout",
    "timeout",
    "retries",
)
COMMANDS = ("global", "install", ":env:")  # later ones win
CERTIFICATE_VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
CERTIFICATE_IN_BUILD = "/run/secrets/ca.pem"
CACHE_IN_BUILD = "/var/cache/pip"
LINKS_IN_BUILD = "/var/cache/pip-links"


@dataclass(frozen=True, slots=True)
class PipSettings:
    """What the steps of a build need to know.

    Attributes:
        configuration: a pip.conf.
        certificate: bundle of certificate authorities on this machine; None when pip's own is used.
        folders: folders of wheels: path on this machine -> path in the build.
    """

    configuration: str
    certificate: Path | None
    folders: Mapping[Path, str]


def parse_pip_config(listing: str) -> dict[str, str]:
    """Parse what `pip config list` prints; of one setting in several places, the one that pip itself would use counts.

    Args:
        listing: lines such as `global.timeout='9'` or `:env:.timeout='20'`.
    """
    found: dict[tuple[str, str], str] = {}
    for line in listing.splitlines():
        key, separator, value = line.partition("=")
        command, _, name = key.strip().rpartition(".")
        if separator and command in COMMANDS:
            found[command, name] = str(ast.literal_eval(value.strip()))
    ordered = sorted(found.items(), key=lambda item: COMMANDS.index(item[0][0]))
    return {name: value for (_, name), value in ordered}


def settings_for_build(configured: Mapping[str, str], environment: Mapping[str, str]) -> PipSettings:
    """Return what a build has to be told, given what pip on this machine is told.

    Args:
        configured: as `parse_pip_config` returns it.
        environment: for the variables that name a certificate bundle when pip's settings do not.
    """
    carried = {name: configured[name] for name in CARRIED if name in configured}
    links = carried.pop("find-links", "").split()
    local = [Path(link) for link in links if Path(link).is_dir() and any(Path(link).iterdir())]
    folders = {folder: f"{LINKS_IN_BUILD}/{number}" for number, folder in enumerate(local)}
    links = [*(link for link in links if "://" in link), *folders.values()]
    if links:
        carried["find-links"] = "\n    ".join(links)
    named = (configured.get("cert"), *(environment.get(name) for name in CERTIFICATE_VARIABLES))
    certificate = next((Path(name) for name in named if name and Path(name).is_file()), None)
    if certificate is not None:
        carried["cert"] = CERTIFICATE_IN_BUILD
    carried |= {"cache-dir": CACHE_IN_BUILD, "disable-pip-version-check": "true", "root-user-action": "ignore"}
    carried |= {"no-warn-script-location": "true", "progress-bar": "off"}
    # pip splits a list at line ends or spaces, depending on the option: one a line suits both.
    lines = [f"{name} = {value}" for name, value in carried.items()]
    return PipSettings("\n".join(["[global]", *lines, ""]), certificate, folders)


def read_settings() -> PipSettings:
    """Ask this interpreter's pip for its settings.

    Raises:
        ImageError: it has no pip.
    """
    return settings_for_build(parse_pip_config(_pip("config", "list")), os.environ)


def cache_folder() -> Path:
    """Return the folder where pip keeps what it has downloaded; builds share it, so torch comes once."""
    return Path(_pip("cache", "dir").strip())


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()[-1000:]}")
    return done.stdout
