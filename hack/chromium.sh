#!/usr/bin/env bash
# Install Debian's Chromium, in which the tests look at the page of `forebay roi`. Does nothing when it is there.
set -euo pipefail

if command -v chromium >/dev/null; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    printf 'chromium: not installed, and only root on Debian can do it here; the tests of the page are skipped\n' >&2
    exit 0
fi
apt-get update -q >/dev/null
DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends chromium >/dev/null
