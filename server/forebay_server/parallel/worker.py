"""A rank's process: `python -m forebay_server.parallel.worker --config-json JSON` (JSON: a `RankLaunch`).

It loads its share of the model, meets the other ranks, and computes what rank 0 tells it until rank 0 is gone.
"""

import argparse
import contextlib
import logging
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import torch

from forebay_server.engine.device import available_bytes, resolve_device, resolve_dtype, resolve_kv_dtype
from forebay_server.engine.forward_pass import ForwardPass
from forebay_server.engine.kv_cache import allocate_kv_cache, plan_kv_cache
from forebay_server.errors import ExitCode, StartupError
from forebay_server.launch import die_with_parent, give_way
from forebay_server.parallel.connections import Connections
from forebay_server.parallel.messages import (
    BlockTables,
    ComputeStep,
    Found,
    FromRank,
    Join,
    Joined,
    Loaded,
    RankFailed,
    RankLaunch,
    ToRank,
    decoder,
    encoder,
)
from forebay_server.parallel.ranks import store_path
from forebay_server.parallel.sampling import StepLostError, find_together, join_in
from forebay_server.parallel.steps import Work, works_of_message
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
        self._encoder, self._decoder = encoder(), decoder(ToRank)

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
        self._launch, self._socket = launch, socket
        self._device = resolve_device(config.device, launch.rank)
        checkpoint = open_checkpoint(Path(config.model))
        self._connections = Connections.of(launch.rank, config)
        self._dtype = resolve_dtype(config, checkpoint.config)
        self._model = load_model(
            checkpoint,
            self._dtype,
            self._device,
            launch.available_bytes,
            options=launch.options,
            group=self._connections.group,
            stage=self._connections.stage,
        ).model
        self._tables = BlockTables()

    def serve(self) -> None:
        """Join the others, then compute step after step."""
        forward = self._join()
        with torch.inference_mode():
            while True:
                message = self._socket.receive()
                if not isinstance(message, ComputeStep):
                    raise ValueError(f"{type(message).__name__} is no step")
                for work in works_of_message(message, self._tables):
                    self._compute(work, forward)

    def _join(self) -> ForwardPass:
        config, model = self._launch.config, self._model
        loaded_bytes = weight_bytes(model)
        num_sharing = config.num_ranks if self._device.type == "cpu" else 1
        free = min(self._launch.available_bytes - loaded_bytes, available_bytes(self._device, num_sharing))
        kv_dtype = resolve_kv_dtype(config, self._dtype)
        sizes = (config, model.cache_config, self._launch.max_model_len, kv_dtype, free)
        layout = plan_kv_cache(*sizes, is_gpu=self._device.type == "cuda")
        self._socket.send(Loaded(loaded_bytes, layout.num_blocks))
        join = self._socket.receive()
        if not isinstance(join, Join):
            raise ValueError(f"the first message is {type(join).__name__}")
        self._connections.connect(store_path(self._launch.store_fd), self._device)
        kv_cache = allocate_kv_cache(replace(layout, num_blocks=join.num_blocks), model.cache_config, self._device)
        give_way()
        self._socket.send(Joined())
        return ForwardPass(model, kv_cache, self._launch.max_model_len)

    def _compute(self, work: Work, forward: ForwardPass) -> None:
        """Take what the stage before has computed, and give the next one, or rank 0, what comes of it."""
        stage, link = self._connections.stage, self._connections.link
        hidden = None
        if not stage.is_first:
            shape = (work.num_tokens, self._model.config.hidden_size)
            hidden = link.receive(torch.empty(shape, dtype=self._dtype, device=self._device))
        hidden = forward.compute(work.batch, hidden)
        if not stage.is_last:
            link.send(hidden)
        elif not work.requests:
            join_in(forward, work, hidden)
        else:
            self._socket.send(self._find(work, forward, hidden))

    def _find(self, work: Work, forward: ForwardPass, hidden: torch.Tensor) -> Found:
        """A request whose tokens cannot be found costs its step, and not the engine."""
        try:
            return Found(find_together(forward, work, hidden))
        except (StepLostError, torch.AcceleratorError):
            raise
        except Exception as error:  # as in `Engine.step`: only this step's requests shall suffer
            logger.exception("rank %d finds no tokens in a step", self._launch.rank)
            return Found({}, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(main())
