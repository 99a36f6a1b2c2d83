"""A rank's process: `python -m forebay_server.parallel.worker --config-json JSON` (JSON: a `RankLaunch`).

It loads its share of the model, meets the other ranks, and computes what rank 0 tells it until rank 0 is gone.
"""

import argparse
import contextlib
import logging
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import torch

from forebay_server.engine.device import resolve_device, resolve_dtype
from forebay_server.engine.forward_pass import ForwardPass
from forebay_server.engine.kv_cache import KVCacheLayout, allocate_kv_cache
from forebay_server.errors import ExitCode, StartupError
from forebay_server.launch import die_with_parent
from forebay_server.parallel.forward import batch_of
from forebay_server.parallel.messages import (
    BlockTables,
    ComputeLogits,
    ComputeStep,
    FromRank,
    Join,
    Joined,
    Loaded,
    RankFailed,
    RankLaunch,
    ToRank,
)
from forebay_server.parallel.process_group import ProcessGroup
from forebay_server.weights.checkpoint import open_checkpoint
from forebay_server.weights.loader import load_model, weight_bytes

logger = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Run the rank until rank 0 closes its socket; returns the exit code."""
    parser = argparse.ArgumentParser(description="One rank of a model; the engine process (rank 0) starts it.")
    parser.add_argument("--config-json", required=True, help="a RankLaunch as JSON")
    launch = msgspec.json.decode(parser.parse_args(arguments).config_json, type=RankLaunch)
    die_with_parent(launch.parent_pid)
    logging.basicConfig(level=launch.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(launch.num_threads)
    socket = _Socket(Connection(launch.socket_fd))
    try:
        _Rank(launch, socket).serve()
    except EOFError:
        return ExitCode.DRAINED
    except StartupError as error:
        failure = error
    except MemoryError as error:
        failure = StartupError(ExitCode.WEIGHTS_DO_NOT_FIT, "OutOfMemory", f"out of memory: {error}")
    except Exception as error:  # whatever it is, the ranks no longer are at the same place
        logger.exception("rank %d fails", launch.rank)
        failure = StartupError(ExitCode.DEVICE_LOST, "RankLost", f"a step failed: {type(error).__name__}: {error}")
    with contextlib.suppress(OSError):
        socket.send(RankFailed.of(failure))
    return failure.exit_code


class _Socket:
    """Messages to and from rank 0."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToRank)

    def send(self, message: FromRank) -> None:
        self._connection.send_bytes(self._encoder.encode(message))

    def receive(self) -> ToRank:
        """Wait for the next message; EOFError when rank 0 is gone."""
        try:
            message: ToRank = self._decoder.decode(self._connection.recv_bytes())
        except ConnectionError as error:
            raise EOFError from error
        return message


class _Rank:
    """The share of the model, and the loop."""

    def __init__(self, launch: RankLaunch, socket: _Socket) -> None:
        config = launch.config
        self._socket = socket
        self._store_path = launch.store_path
        self._block_size = config.block_size
        self._device = resolve_device(config.device, launch.rank)
        checkpoint = open_checkpoint(Path(config.model))
        self._group = ProcessGroup(launch.rank, config.tensor_parallel_size)
        self._dtype = resolve_dtype(config, checkpoint.config)
        loaded = load_model(
            checkpoint, self._dtype, self._device, launch.available_bytes, options=launch.options, group=self._group
        )
        self._model = loaded.model
        self._tables = BlockTables()

    def serve(self) -> None:
        """Join the others, then compute step after step."""
        self._socket.send(Loaded(weight_bytes(self._model)))
        join = self._socket.receive()
        if not isinstance(join, Join):
            raise ValueError(f"the first message is {type(join).__name__}")
        self._group.connect(self._store_path, self._device)
        layout = KVCacheLayout(join.num_blocks, self._block_size, 0, getattr(torch, join.kv_dtype))
        kv_cache = allocate_kv_cache(layout, self._model.cache_config, self._device)
        forward = ForwardPass(self._model, kv_cache, join.max_model_len)
        self._socket.send(Joined())
        with torch.inference_mode():
            while True:
                self._obey(self._socket.receive(), forward)

    def _obey(self, message: ToRank, forward: ForwardPass) -> None:
        match message:
            case ComputeStep():
                forward.compute(batch_of(message, self._tables))
            case ComputeLogits():
                shape = (message.num_rows, self._model.config.hidden_size)
                hidden = torch.empty(shape, dtype=self._dtype, device=self._device)
                forward.logits(self._group.broadcast(hidden))
            case Join():
                raise ValueError("joined already")


if __name__ == "__main__":
    sys.exit(main())
