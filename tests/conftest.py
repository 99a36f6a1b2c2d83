"""For every test: OpenMP's waiting threads sleep, as in the engine process; spinning ones starve a small machine."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read once, when torch is first imported
