"""The sampler of elastic training, which continues an epoch on another number of ranks."""

from __future__ import annotations

from horovod.common.elastic import Placeholder

__all__ = ["ElasticSampler"]


class ElasticSampler(Placeholder, placeholder=True):
    """Deals out the samples of an epoch that were not processed before ranks came or went."""
