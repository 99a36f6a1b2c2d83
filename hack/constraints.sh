#!/usr/bin/env bash
# Write the versions in .venv to constraints.txt: names and versions, never addresses.
set -euo pipefail
cd "$(dirname "$0")/.."
{
    echo "# Pinned versions of everything that .venv and the images install. Made by \`make constraints\`."
    .venv/bin/python -m pip list --format=freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==' | grep -v '^setuptools==' | sort -f
} > constraints.txt
