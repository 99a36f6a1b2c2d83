"""The steps from source to an image on the node; each does nothing when its result is there already."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hack.cluster.info import ClusterInfo
from hack.cluster.locks import exclusive
from hack.cluster.packages import SEARCH_PATH, install
from hack.cluster.paths import cache_root
from hack.images.base import base_reference, build_base
from hack.images.buildah import Buildah
from hack.images.errors import ImageError
from hack.images.node import node_has, pull_on_node
from hack.images.pip_settings import CACHE_IN_BUILD, PipSettings, cache_folder, read_settings
from hack.images.recipe import Image, content_tag, copy_context
from hack.images.registry import has_manifest
from hack.progress import step

PREFIX = "forebay.local"
DEBIAN_PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap"}
# A cold build of the server: 5 GB of files, twice more while they are committed, 3 GB in the registry.
COLD_BUILD_GIB = 18
GIB = 1 << 30
KEPT_IMAGES = 3  # of each kind: when the pins change, the layer of 5 GB that they replace goes two builds later


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Where the images of one state of the source are built.

    Attributes:
        context: a copy of what the builds read.
        buildah: buildah on the cache that all checkouts share.
    """

    context: Path
    buildah: Buildah

    @classmethod
    @contextlib.contextmanager
    def of_checkout(cls, checkout: Path) -> Iterator["Pipeline"]:
        """Yield the pipeline for the source tree as it is now, with the user's cache folder."""
        with tempfile.TemporaryDirectory(prefix="forebay-images-") as folder:
            copy_context(checkout, Path(folder))
            yield cls(Path(folder), Buildah(cache_root() / "images"))

    def tag(self, image: Image) -> str:
        """Return the tag that the image's content gives it."""
        return content_tag(self.context, image, base_reference(PREFIX))

    def reference(self, image: Image) -> str:
        """Return the image's name as pods write it."""
        return f"{PREFIX}/{image.name}:{self.tag(image)}"

    def build(self, image: Image) -> str:
        """Build an image and return its reference.

        Raises:
            ImageError: no space, or a step of the build failed.
        """
        reference = self.reference(image)
        with exclusive(self.buildah.folder.with_suffix(".lock")):
            self._install_programs()
            if self.buildah.has_image(reference):
                return reference
            self.buildah.remove_containers()
            base = self._base()
            with step(f"build {image.name}"):
                self._build(image, reference, base)
                self.buildah.prune(KEPT_IMAGES)
        return reference

    def push(self, image: Image, cluster: ClusterInfo) -> str:
        """Build an image and push it, unless the registry has it; return its reference.

        Raises:
            ImageError: the build failed, or the registry does not take it.
        """
        reference = self.reference(image)
        if has_manifest(cluster.registry, image.name, self.tag(image)):
            return reference
        self.build(image)
        with step(f"push {image.name} to the cluster's registry"):
            proxy = f"http://{cluster.registry}"
            # zstd: half the bytes of a plain layer and, unlike gzip, faster than the disk. The registry is addressed as
            # a proxy because buildah remembers by the registry's name which layers are there: the registries of all
            # checkouts serve one folder, so all go by one name, and a second checkout does not compress 5 GB again.
            self.buildah.run(
                "push",
                "--tls-verify=false",
                "--format=oci",
                "--compression-format=zstd",
                "--compression-level=1",
                reference,
                f"docker://{reference}",
                log=f"push-{image.name}",
                environment=dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
                | {"NO_PROXY": "", "no_proxy": ""},
            )
        return reference

    def pull(self, image: Image, cluster: ClusterInfo) -> str:
        """Bring an image from the registry onto the node, unless it is there; return its reference."""
        reference = self.reference(image)
        if not node_has(cluster, reference):
            with step(f"pull {image.name} onto the node"):
                pull_on_node(f"pull-{image.name}", reference)
        return reference

    def clean(self) -> None:
        """Remove the build cache: base, dependency layers, images. What the registry holds stays."""
        with exclusive(self.buildah.folder.with_suffix(".lock")):
            if (self.buildah.folder / "storage").exists():
                self.buildah.remove_containers()
                self.buildah.run("rmi", "--all", "--force", log="clean")
            shutil.rmtree(self.buildah.folder, ignore_errors=True)
            shutil.rmtree(self.buildah.run_root, ignore_errors=True)

    def _install_programs(self) -> None:
        missing = [p for program, p in DEBIAN_PACKAGES.items() if shutil.which(program, path=SEARCH_PATH) is None]
        if os.geteuid() != 0:
            raise ImageError("building images without a registry needs root (debootstrap and buildah's overlay do)")
        if missing:
            with step(f"Debian packages: {', '.join(missing)}"):
                self.buildah.log("apt").parent.mkdir(parents=True, exist_ok=True)
                install(missing, self.buildah.log("apt"))

    def _base(self) -> str:
        reference = base_reference(PREFIX)
        if not self.buildah.has_image(reference):
            self.buildah.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.buildah.folder).free
            if free < COLD_BUILD_GIB * GIB:
                raise ImageError(
                    f"{self.buildah.folder} has {free / GIB:.1f} GiB left, a first build needs {COLD_BUILD_GIB}; "
                    "free some space, or set XDG_CACHE_HOME to a folder on a larger disk"
                )
            with step("base image, from Debian packages"):
                build_base(self.buildah, reference)
        return reference

    def _build(self, image: Image, reference: str, base: str) -> None:
        settings = read_settings()
        cache = cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
        self.buildah.temporary.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.buildah.temporary) as folder:
            self.buildah.run(
                "build",
                "--isolation=chroot",
                "--layers",
                "--pull-never",
                f"--build-arg=BASE_IMAGE={base}",
                f"--file={self.context / image.dockerfile}",
                f"--tag={reference}",
                *secrets(settings, Path(folder)),
                f"--volume={cache}:{CACHE_IN_BUILD}",
                *(f"--volume={path}:{target}:ro" for path, target in settings.folders.items()),
                str(self.context),
                log=image.name,
            )


def secrets(settings: PipSettings, folder: Path) -> list[str]:
    """Write pip's settings where only this build reads them; return the options that mount them.

    Args:
        settings: of this machine.
        folder: exists as long as the build runs, readable by its owner only.
    """
    file = folder / "pip.conf"
    file.write_text(settings.configuration, encoding="utf-8")
    options = [f"--secret=id=pip.conf,src={file}"]
    if settings.certificate is not None:
        options.append(f"--secret=id=ca.pem,src={settings.certificate.resolve()}")
    return options


def save_references(checkout: Path, references: dict[str, str]) -> None:
    """Write `.cluster/images.json`: key of each image -> reference."""
    file = checkout / ".cluster" / "images.json"
    file.parent.mkdir(exist_ok=True)
    staged = file.with_suffix(".new")
    staged.write_text(json.dumps(references, indent=2) + "\n", encoding="utf-8")
    staged.replace(file)
