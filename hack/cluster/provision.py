"""Gets every program that the cluster runs: Debian packages and builds from source, only what is missing."""

from pathlib import Path

from hack.cluster import builds, packages, toolchain
from hack.cluster.errors import ClusterError
from hack.cluster.paths import Paths
from hack.progress import Console


def provision(paths: Paths, console: Console) -> dict[str, str]:
    """Install and build what is missing.

    Args:
        paths: the log and program folders.
        console: where each step is reported.

    Returns:
        Program name -> absolute path.

    Raises:
        ClusterError: something could not be installed or built.
    """
    with console.step("Debian packages") as step:
        missing = packages.missing_packages()
        if missing:
            packages.install(missing, paths.logs / "apt.log")
        step.result = f"{len(missing)} installed" if missing else "present"
    for family in builds.FAMILIES:
        with console.step(builds.folder_of(family, paths.programs).name) as step:
            step.result = "present"
            if not builds.is_built(family, paths.programs):
                go = toolchain.go_program(paths.checkout, paths.logs / "go.log")
                log = paths.logs / f"build-{family.name}.log"
                if builds.build(family, paths.programs, go, log, step.progress):
                    step.result = "built"
    return locate(paths)


def locate(paths: Paths) -> dict[str, str]:
    """Return program name -> absolute path, of everything that is in place already.

    Raises:
        ClusterError: a system program is missing.
    """
    programs = {name: packages.program(name) for name in packages.PACKAGES}
    for family in builds.FAMILIES:
        folder = builds.folder_of(family, paths.programs)
        programs |= {name: str(folder / name) for name in family.packages}
    return programs


def cni_folder() -> Path:
    """Return the folder of the CNI plugins.

    Raises:
        ClusterError: they are not installed.
    """
    folder = packages.cni_folder()
    if folder is None:
        raise ClusterError(f"no CNI plugins in {' or '.join(map(str, packages.CNI_FOLDERS))} ({packages.CNI_PACKAGE})")
    return folder
