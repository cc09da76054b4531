"""The worker of horovod.run: fetches the function from the launcher, calls it, sends back the result."""

from __future__ import annotations

import base64
import os
import sys
import traceback

import cloudpickle
import msgpack

from horovod.common.knobs import start_timeout
from horovod.common.rendezvous import RendezvousClient
from horovod.runner.common.util.env import get_env_rank_and_size
from horovod.runner.plan import KEY_VARIABLE
from horovod.runner.run_function import FUNCTION_KEY, FUNCTION_SCOPE, RESULT_SCOPE

# For one message, which may be a large result.
TRANSFER_SECONDS = 600.0


def _connect(timeout: float) -> RendezvousClient:
    return RendezvousClient(
        os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
        int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]),
        base64.b64decode(os.environ[KEY_VARIABLE]),
        timeout,
    )


def _call(packed: bytes) -> tuple[bool, bytes | str]:
    """Whether it worked; the pickled result or the traceback."""
    try:
        paths, call = msgpack.unpackb(packed)
        known = set(sys.path)
        sys.path += [path for raw in paths if (path := os.fsdecode(raw)) not in known]
        func, args, kwargs = cloudpickle.loads(call)
        return True, cloudpickle.dumps(func(*args, **kwargs))
    except Exception:  # noqa: BLE001 - whatever it is, the caller of horovod.run gets it
        return False, traceback.format_exc()


def main() -> int:
    """Exit status 1 when the function raised; its traceback then is also on stderr."""
    rank, _ = get_env_rank_and_size()  # of horovodrun, or of mpirun
    with _connect(start_timeout()) as client:
        packed = client.get(FUNCTION_SCOPE, FUNCTION_KEY, TRANSFER_SECONDS)
    worked, content = _call(packed)
    if not worked:
        sys.stderr.write(str(content))
    # A second connection: the function may have forked, or run for days.
    with _connect(TRANSFER_SECONDS) as client:
        client.set(RESULT_SCOPE, str(rank), msgpack.packb([rank, worked, content]))
    return 0 if worked else 1


if __name__ == "__main__":
    sys.exit(main())
