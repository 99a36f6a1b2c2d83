"""The engine process: `python -m forebay_server.engine.process --config-json JSON` (JSON: an `EngineLaunch`).

Started by the API process (`forebay_server.launch`), and ends with it. This module prepares the process before torch is
imported; `engine_loop` is what then runs.
"""

import argparse
import gc
import logging
import os
import sys
from pathlib import Path
from types import ModuleType

import msgspec

from forebay_server.launch import EngineLaunch, die_with_parent

_THREAD_SETTINGS = {
    # Threads that wait for one another must sleep, not spin: with a busy neighbour on 2 CPUs, a spinning thread keeps
    # the one that it waits for off the CPU for whole time slices (8 ms a parallel region instead of 0.05 measured).
    "OMP_WAIT_POLICY": "passive",
    # NumPy's BLAS multiplies nothing here, and its threads would spin while torch is imported.
    "OPENBLAS_NUM_THREADS": "1",
}
_LEFT_OUT = ("torch._meta_registrations", "torch.quantization", "torch.distributions")
"""What torch imports and the engine never uses: rules by which its compiler and tracer work out shapes, old names of
quantization, random distributions."""
_LEFT_OUT_WITHOUT_GPU = "cuda.bindings"
"""NVIDIA's own interface to contexts and graphs."""
_NVIDIA_DEVICE = Path("/dev/nvidiactl")


def main(arguments: list[str] | None = None) -> int:
    """Run the engine until the API process shuts it down; returns the exit code."""
    parser = argparse.ArgumentParser(description="The engine process; the API process (`forebay serve`) starts it.")
    parser.add_argument("--config-json", required=True, help="an EngineLaunch as JSON")
    launch = msgspec.json.decode(parser.parse_args(arguments).config_json, type=EngineLaunch)
    die_with_parent(launch.parent_pid)
    logging.basicConfig(level=launch.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name, value in _THREAD_SETTINGS.items():
        os.environ.setdefault(name, value)
    gc.disable()  # until all is loaded: a fifth of the time that importing torch takes is looking for garbage
    _import_torch()
    from forebay_server.engine.engine_loop import run_engine  # imports torch, which reads the settings above

    return run_engine(launch)


def _import_torch() -> None:
    """Import torch without what is not needed here. Whoever imports that later gets it."""
    left_out = _LEFT_OUT if _NVIDIA_DEVICE.exists() else (*_LEFT_OUT, _LEFT_OUT_WITHOUT_GPU)
    for name in left_out:
        sys.modules[name] = ModuleType(name)
    import torch

    for name in left_out:
        del sys.modules[name]
        package, _, attribute = name.rpartition(".")
        if package == "torch":
            vars(torch).pop(attribute, None)


if __name__ == "__main__":
    sys.exit(main())
