"""Packs one static program as a container image, in the archive format that `ctr images import` reads.

Source: https://github.com/moby/docker-image-spec/blob/main/spec.md ("combined image JSON + filesystem changeset")
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path


def archive(program: Path, reference: str) -> bytes:
    """Return an image archive with nothing in it but one program, its entry point. Pure but for reading the program.

    Args:
        program: a statically linked executable; it lies at `/NAME` in the image.
        reference: full image name with tag.
    """
    layer = _tar({program.name: (program.read_bytes(), 0o755)})
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [reference], "Layers": ["layer.tar"]}]).encode()
    return _tar({"manifest.json": (manifest, 0o644), config_name: (config, 0o644), "layer.tar": (layer, 0o644)})


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    """Return a tar archive of name -> (content, mode), the same bytes each time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
