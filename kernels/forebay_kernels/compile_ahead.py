"""Compile every kernel for GPUs that this machine does not have, and say what the machine code uses.

What is compiled is the launch that `forebay_kernels.gpu` makes for tensors of production sizes, down to the constants
and the divisibility of every integer: the same specialisation that a GPU would ask for.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from forebay_kernels.compile_table import TABLE_PATH, Key, Use, format_table
from forebay_kernels.dispatch import KERNELS
from forebay_kernels.machine_code import Resources, occupancy_of, resources_of
from forebay_kernels.production import production_launches
from forebay_kernels.targets import TARGETS, Target, target_named

if TYPE_CHECKING:
    from triton.tools.tensor_descriptor import TensorDescriptor

    from forebay_kernels.gpu.launch import Launch

_EXAMPLES = """examples:
  python -m forebay_kernels.compile_ahead                              every kernel for every target
  python -m forebay_kernels.compile_ahead --target sm_90 --kernel rotary
  python -m forebay_kernels.compile_ahead --target sm_75 --dtype float16      a GPU that is not in the list
  python -m forebay_kernels.compile_ahead --json > kernels.json
  python -m forebay_kernels.compile_ahead --write-table                after a change that moves a register

exit status: 0 when every kernel compiles within its target's limits, 1 when one does not, 2 for a bad command line."""


_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class Row:
    """What one kernel in one configuration uses on one target."""

    kernel: str
    configuration: str
    target: str
    binary_bytes: int
    registers: int
    spilled_bytes: int
    """Bytes of memory that a thread needs because its values do not fit in registers."""
    shared_bytes: int
    max_shared_bytes: int | None
    """None: this tool does not know the target's."""
    num_warps: int
    occupancy: float | None
    """Share of a multiprocessor's warps that it holds when this kernel fills it, 0 to 1; None: not known."""
    error: str | None = None
    """Why the compiler refused it, in one line; all numbers are 0 then."""

    @property
    def problem(self) -> str | None:
        """Why this row must not ship, or None."""
        if self.error is not None:
            return f"does not compile: {self.error}"
        if self.binary_bytes == 0:
            return "no machine code"
        if self.spilled_bytes:
            return f"spills {self.spilled_bytes} bytes a thread"
        if self.max_shared_bytes is not None and self.shared_bytes > self.max_shared_bytes:
            return f"needs {self.shared_bytes} bytes of shared memory, the target has {self.max_shared_bytes}"
        return None


class RefusedError(Exception):
    """The compiler cannot make a kernel for a target; says why in one line."""


def compile_launch(launch: "Launch", target: Target) -> Any:
    """Compile one launch for one target; needs no GPU. Returns Triton's compiled kernel.

    Raises:
        RuntimeError: Triton runs as an interpreter in this process (TRITON_INTERPRET), which cannot compile.
        RefusedError: the compiler cannot make this kernel for this target.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import PTXASError

    if not isinstance(launch.kernel, triton.JITFunction):
        raise RuntimeError("cannot compile while TRITON_INTERPRET is set: unset it and start a new process")
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        # Triton's own rule at a launch: None and 1 become constants; a multiple of 16 is told to the compiler, as is
        # the 16-byte alignment that torch gives every tensor it allocates.
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
            continue
        signature[parameter.name] = _type_of(value)
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    gpu = GPUTarget(target.backend, target.arch, target.warp_size)
    try:
        return triton.compile(source, target=gpu, options=launch.options)
    except (CompilationError, PTXASError, RuntimeError) as error:
        raise RefusedError(reason_of(error)) from error


def compile_row(kernel: str, configuration: str, launch: "Launch", target_name: str) -> Row:
    """Compile one launch for one target and describe the outcome, a refusal of the compiler included.

    Raises:
        RuntimeError: as `compile_launch`.
    """
    target = target_named(target_name)
    binary, resources, error = b"", Resources(0, 0, 0), None
    try:
        compiled = compile_launch(launch, target)
        binary, resources = compiled.kernel, resources_of(compiled)
    except RefusedError as caught:
        error = str(caught)
    return Row(
        kernel=kernel,
        configuration=configuration,
        target=target_name,
        binary_bytes=len(binary),
        registers=resources.registers,
        spilled_bytes=resources.spilled_bytes,
        shared_bytes=resources.shared_bytes,
        max_shared_bytes=target.max_shared_bytes,
        num_warps=launch.num_warps,
        occupancy=None if error is not None else occupancy_of(resources, launch.num_warps, target),
        error=error,
    )


def reason_of(error: Exception) -> str:
    """Return in one line why the compiler refused a kernel: the last of what it said that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^~")]
    if lines == ["PassManager::run failed"]:
        return "a pass of Triton's compiler fails on it; its report on standard error names the pass"
    return lines[-1] if lines else type(error).__name__


Job = tuple[str, str, int]
"""(target, dtype, index of `production_launches`)."""


def compile_rows(jobs: list[Job], num_processes: int) -> Iterator[Row]:
    """Compile one after the other, or in several processes; in order.

    Raises:
        BrokenProcessPool: the compiler ended its process, as LLVM does when it does not know a target.
    """
    if num_processes == 1 and all(target in TARGETS for target, _, _ in jobs):
        yield from map(_compile_job, jobs)
        return
    # Spawned, not forked: the compiler has threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        yield from pool.map(_compile_job, jobs, chunksize=4)


def _compile_job(job: Job) -> Row:
    target_name, dtype, index = job
    kernel, configuration, launch = list(production_launches(target_named(target_name), _DTYPES[dtype]))[index]
    return compile_row(kernel, configuration, launch, target_name)


def _type_of(value: "torch.Tensor | TensorDescriptor | int | float") -> str:
    """Triton's name of an argument's type."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{_type_of(value.base).removeprefix('*')}{list(value.block_shape)}>"
    if isinstance(value, torch.Tensor):
        names = {
            torch.float32: "fp32",
            torch.float16: "fp16",
            torch.bfloat16: "bf16",
            torch.float8_e4m3fn: "fp8e4nv",
            torch.int64: "i64",
            torch.int32: "i32",
            torch.int8: "i8",
            torch.uint8: "u8",
            torch.bool: "i1",
        }
        return "*" + names[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def main(arguments: list[str] | None = None, *, echo: Callable[[str], None] = print) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m forebay_kernels.compile_ahead",
        description="Compile every GPU kernel ahead of time, on a machine without a GPU, and print what it uses.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--target",
        action="append",
        help=f"GPU to compile for; repeatable; default {', '.join(TARGETS)}; others that Triton knows are compiled too",
    )
    parser.add_argument("--dtype", choices=_DTYPES, default="bfloat16", help="of activations; default: %(default)s")
    parser.add_argument("--kernel", action="append", help="kernel to compile; repeatable; default all")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one a core")
    parser.add_argument("--write-table", action="store_true", help=f"write {TABLE_PATH.name}: all kernels and targets")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"argument --jobs: must be at least 1, got {options.jobs}")
    if options.write_table and (options.target or options.kernel or options.dtype != "bfloat16"):
        parser.error(
            "argument --write-table: the table has every kernel for every target in bfloat16; "
            "leave --target, --kernel and --dtype"
        )
    for name in options.target or ():
        try:
            target = target_named(name)
        except ValueError as error:
            parser.error(f"argument --target: {error}")
        if options.dtype == "bfloat16" and not target.has_bfloat16:
            parser.error(f"argument --target: {name} does not multiply bfloat16: use --dtype float16")
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        parser.error("TRITON_INTERPRET is set, and the interpreter compiles nothing: unset it")
    known = sorted(KERNELS)
    for kernel in options.kernel or ():
        if kernel not in known:
            parser.error(f"argument --kernel: unknown kernel {kernel!r}; there are {', '.join(known)}")

    jobs = [
        (target_name, options.dtype, index)
        for target_name in options.target or TARGETS
        for index, (kernel, _, _) in enumerate(production_launches(target_named(target_name), _DTYPES[options.dtype]))
        if not options.kernel or kernel in options.kernel
    ]
    rows = []
    started = time.monotonic()
    if not options.json:
        echo(_line("kernel", "configuration", "target", "registers", "spilled", "shared", "warps", "occupancy"))
    try:
        for row in compile_rows(jobs, options.jobs):
            rows.append(row)
            if not options.json:
                echo(_table_line(row))
    except BrokenProcessPool:
        target_name, _, _ = jobs[len(rows)]
        print(
            f"error: the compiler gave up while it compiled for {target_name}: does it know this GPU?", file=sys.stderr
        )
        return 1
    problems = [f"{row.kernel}, {row.configuration}, {row.target}: {row.problem}" for row in rows if row.problem]
    if options.json:
        echo(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        echo(f"{len(rows)} compiled in {time.monotonic() - started:.0f} s, {len(problems)} over their limits")
    if options.write_table:
        TABLE_PATH.write_text(format_table(dict(map(table_entry, rows)), triton_version()))
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def table_entry(row: Row) -> tuple[Key, Use]:
    """Return the row's key and use in the checked-in table."""
    use = (row.registers, row.spilled_bytes, row.shared_bytes, row.num_warps, round(100 * (row.occupancy or 0)))
    return (row.kernel, row.configuration, row.target), use


def triton_version() -> str:
    """Return the version of the compiler."""
    import triton

    return str(triton.__version__)


def _table_line(row: Row) -> str:
    if row.error is not None:
        return _line(row.kernel, row.configuration, row.target, f"  does not compile: {row.error}")
    return _line(
        row.kernel,
        row.configuration,
        row.target,
        str(row.registers),
        f"{row.spilled_bytes} B",
        f"{row.shared_bytes} B",
        str(row.num_warps),
        "?" if row.occupancy is None else f"{row.occupancy:.0%}",
    )


def _line(kernel: str, configuration: str, target: str, *numbers: str) -> str:
    return f"{kernel:<22} {configuration:<34} {target:<7}" + "".join(f"{number:>10}" for number in numbers)


if __name__ == "__main__":
    sys.exit(main())
