"""Builds the cluster's programs from pinned Go modules, once for each version, into the user's cache."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hack.cluster import locks
from hack.cluster.errors import ClusterError

MODULES = Path(__file__).parent / "go"


@dataclass(frozen=True, slots=True)
class Family:
    """Programs that come from one module and so share one go.mod.

    Attributes:
        name: folder below `go/` with go.mod and go.sum.
        module: the module whose required version is the family's version; empty for our own source.
        packages: program name -> import path.
        variables: Go variable -> text for the linker's -X; `{version}`, `{major}` and `{minor}` are filled in.
        build: ends the name of the cache folder; another word when the variables change, so that it is built anew.
    """

    name: str
    module: str
    packages: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    build: str = ""


_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
_KUBERNETES_VERSION = "k8s.io/component-base/version"

FAMILIES = (
    Family(
        "kubernetes",
        "k8s.io/kubernetes",
        {program: f"k8s.io/kubernetes/cmd/{program}" for program in _KUBERNETES},
        {
            f"{_KUBERNETES_VERSION}.gitVersion": "{version}",
            f"{_KUBERNETES_VERSION}.gitMajor": "{major}",
            f"{_KUBERNETES_VERSION}.gitMinor": "{minor}",
        },
    ),
    Family("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Family(
        "helm",
        "helm.sh/helm/v3",
        {"helm": "helm.sh/helm/v3/cmd/helm"},
        {
            "helm.sh/helm/v3/internal/version.version": "{version}",
            # What `helm template` and `helm lint` take for the cluster's version; without it they believe in 1.20.
            **{
                f"helm.sh/helm/v3/pkg/{package}.k8sVersion{part}": number
                for package in ("chartutil", "lint/rules")
                for part, number in (("Major", "1"), ("Minor", "34"))
            },
        },
        build="-kube1.34",
    ),
    Family("coredns", "github.com/coredns/coredns", {"coredns": "github.com/coredns/coredns"}),
    Family("pause", "", {"pause": "."}),
)


def version_of(family: Family, go_mod: str) -> str:
    """Return the version that a go.mod pins, `v0.1.0`-like; `v1` for our own source.

    Raises:
        ClusterError: the module is not required there.
    """
    if not family.module:
        return "v1"
    found = re.search(rf"^(?:require )?\s*{re.escape(family.module)} (v\d\S*)(?: // indirect)?$", go_mod, re.MULTILINE)
    if found is None:
        raise ClusterError(f"go/{family.name}/go.mod requires no version of {family.module}")
    return found[1]


def linker_flags(family: Family, version: str) -> str:
    """Return the -ldflags text: no symbol tables, and the version that the programs report."""
    major, minor = re.findall(r"\d+", version + ".0")[:2]
    settings = (
        f" -X {variable}={value.format(version=version, major=major, minor=minor)}"
        for variable, value in family.variables.items()
    )
    return "-s -w" + "".join(settings)


def folder_of(family: Family, programs: Path) -> Path:
    """Return where a family's programs lie once they are built."""
    go_mod = (MODULES / family.name / "go.mod").read_text(encoding="utf-8")
    return programs / f"{family.name}-{version_of(family, go_mod)}{family.build}"


def is_built(family: Family, programs: Path) -> bool:
    """Tell whether every program of a family is there."""
    return all((folder_of(family, programs) / program).exists() for program in family.packages)


def build(family: Family, programs: Path, go: str, log: Path, progress: Callable[[str], None]) -> bool:
    """Build a family unless it is there; a folder appears only when all of its programs are complete.

    Args:
        family: what to build.
        programs: the cache folder shared by all checkouts.
        go: path of the Go toolchain.
        log: receives Go's output.
        progress: called with one short text a compiled package.

    Returns:
        True when it was built now, False when it was there, or another process had just built it.

    Raises:
        ClusterError: Go failed.
    """
    target = folder_of(family, programs)
    with locks.exclusive(programs / f"{target.name}.lock"):
        if is_built(family, programs):
            return False
        for abandoned in programs.glob(f"{target.name}.build-*"):  # of a process that was killed; we hold the lock
            shutil.rmtree(abandoned)
        with tempfile.TemporaryDirectory(prefix=f"{target.name}.build-", dir=programs) as temporary:
            staged = Path(temporary) / "programs"
            staged.mkdir()
            # A folder as output names each program after its package; a lone package may be called otherwise.
            output = staged / next(iter(family.packages)) if len(family.packages) == 1 else staged
            _compile(family, output, go, log, progress)
            shutil.rmtree(target, ignore_errors=True)
            staged.rename(target)
    return True


def _compile(family: Family, output: Path, go: str, log: Path, progress: Callable[[str], None]) -> None:
    source = MODULES / family.name
    go_mod = (source / "go.mod").read_text(encoding="utf-8")
    flags = ["-v", "-mod=readonly", "-trimpath", "-buildvcs=false"]
    command = [go, "build", *flags, "-ldflags", linker_flags(family, version_of(family, go_mod)), "-o", str(output)]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
    compiled = 0
    with (
        log.open("w", encoding="utf-8") as record,
        subprocess.Popen(
            [*command, *family.packages.values()],
            cwd=source,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        for line in process.stdout or ():
            record.write(line)
            compiled += not line.startswith("go: ")
            progress(f"{compiled} packages compiled" if compiled else "downloading modules")
        code = process.wait()
    if code != 0:
        tail = "".join(log.read_text(encoding="utf-8").splitlines(keepends=True)[-20:])
        raise ClusterError(f"building {family.name} failed with exit code {code}:\n{tail}see {log}")
