"""Ask a container registry what it holds (OCI distribution specification, GET /v2/NAME/manifests/REFERENCE)."""

import urllib.error
import urllib.request

from hack.images.errors import ImageError

MANIFESTS = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"


def has_manifest(registry: str, name: str, tag: str) -> bool:
    """Whether a registry without TLS holds an image.

    Args:
        registry: host:port.
        name: repository.
        tag: tag or digest.

    Raises:
        ImageError: the registry does not answer.
    """
    url = f"http://{registry}/v2/{name}/manifests/{tag}"
    request = urllib.request.Request(url, method="HEAD", headers={"Accept": MANIFESTS})
    # The registry is on this machine: no proxy that the environment names leads there.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30):
            return True
    except urllib.error.HTTPError as refused:
        if refused.code == 404:
            return False
        raise ImageError(f"{url}: HTTP {refused.code}") from refused
    except OSError as failed:
        raise ImageError(f"{url}: {failed}; is the cluster up? (make cluster-up)") from failed
