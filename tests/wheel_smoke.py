"""What a freshly built wheel must be able to do; run under horovodrun."""

from __future__ import annotations

import numpy as np

import horovod.numpy as hvd

hvd.init()
total = hvd.allreduce(np.full(1000, hvd.rank() + 1.0), op=hvd.Sum)
assert (total == hvd.size() * (hvd.size() + 1) / 2).all(), total
hvd.shutdown()
