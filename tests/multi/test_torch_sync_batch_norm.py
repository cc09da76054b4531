"""SyncBatchNorm equals batch normalisation of the whole batch in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import horovod.torch as hvd

LAUNCHES = ["-np 1", "-np 2", "-np 3"]


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


SHAPES = {"1d": (), "1d of sequences": (5,), "2d": (3, 4), "3d": (2, 3, 2)}
PLAIN = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def equal_rows(rank):
    return 3


def uneven_rows(rank):
    return 2 * rank + 1 if hvd.size() > 1 else 4


def rows_or_none(rank):
    return 0 if rank == 0 and hvd.size() > 1 else 4


def batch_of(rank, rows, tail, step=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(100 * step + rank)
    batch = torch.randn(rows, 4, *tail, generator=generator, dtype=torch.float64)
    return (batch * (rank + 1) + rank + 5).to(dtype)


def prepared(layer):
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([0.5, 1.0, -2.0, 3.0]))
            layer.bias.copy_(torch.tensor([0.0, 1.0, -1.0, 2.0]))
    return layer


def run(layer, batch, weights):
    leaf = batch.clone().requires_grad_()
    output = layer(leaf)
    (output * weights).sum().backward()
    return output.detach(), leaf.grad


@pytest.mark.parametrize("rows", [equal_rows, uneven_rows, rows_or_none])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "options", [{}, {"affine": False}, {"momentum": None}, {"momentum": 0.3}], ids=str
)
def test_training_equals_the_whole_batch(shape, rows, options):
    tail = SHAPES[shape]
    sync = prepared(hvd.SyncBatchNorm(4, eps=1e-3, **options).double())
    plain = prepared(PLAIN[len(tail)](4, eps=1e-3, **options).double())
    sizes = [rows(rank) for rank in range(hvd.size())]
    start, stop = sum(sizes[: hvd.rank()]), sum(sizes[: hvd.rank() + 1])
    for step in range(3):
        sync.zero_grad()
        plain.zero_grad()
        whole = torch.cat([batch_of(rank, n, tail, step) for rank, n in enumerate(sizes)])
        weights = torch.sin(torch.arange(whole.numel()).double()).reshape(whole.shape)
        output, gradient = run(sync, whole[start:stop], weights[start:stop])
        expected, expected_gradient = run(plain, whole, weights)
        torch.testing.assert_close(output, expected[start:stop])
        torch.testing.assert_close(gradient, expected_gradient[start:stop])
        torch.testing.assert_close(sync.running_mean, plain.running_mean)
        torch.testing.assert_close(sync.running_var, plain.running_var)
        assert sync.num_batches_tracked == plain.num_batches_tracked
        for mine, theirs in zip(sync.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(hvd.allreduce(mine.grad, op=hvd.Sum), theirs.grad)
        for buffer in sync.buffers():
            assert torch.equal(hvd.broadcast(buffer, 0), buffer)


def test_large_means_lose_no_precision():
    """Sums of squares in float32 would leave nothing of a variance of 1 at a mean of 10000."""
    sync = hvd.SyncBatchNorm(4)
    batch = batch_of(hvd.rank(), 64, ()) / (hvd.rank() + 1) + 10000
    everything = torch.cat(
        [batch_of(rank, 64, ()) / (rank + 1) + 10000 for rank in range(hvd.size())]
    )
    output = sync(batch.float())
    scale = (everything.var(0, unbiased=False) + 1e-5).rsqrt()
    expected = (batch - everything.mean(0)) * scale
    torch.testing.assert_close(output.double(), expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_dtypes(dtype):
    sync = hvd.SyncBatchNorm(4)
    whole = torch.cat([batch_of(rank, 4, (2, 2), dtype=dtype) for rank in range(hvd.size())])
    plain = nn.BatchNorm2d(4)
    output = sync(batch_of(hvd.rank(), 4, (2, 2), dtype=dtype))
    assert output.dtype == dtype
    expected = plain(whole.float())[4 * hvd.rank() : 4 * hvd.rank() + 4]
    tolerance = 0.05 if dtype != torch.float32 else 1e-4
    torch.testing.assert_close(output.float(), expected, rtol=tolerance, atol=tolerance)


def test_channels_last_input():
    sync = hvd.SyncBatchNorm(4).double()
    batch = batch_of(hvd.rank(), 2, (3, 3)).to(memory_format=torch.channels_last)
    torch.testing.assert_close(sync(batch), hvd.SyncBatchNorm(4).double()(batch.contiguous()))


def test_eval_mode_is_local_and_uses_the_running_statistics():
    sync = hvd.SyncBatchNorm(4).double()
    plain = nn.BatchNorm1d(4).double()
    sync(batch_of(hvd.rank(), 3, ()))
    plain.load_state_dict(sync.state_dict())
    sync.eval()
    plain.eval()
    if hvd.rank() == 0:  # no other rank takes part
        batch = batch_of(9, 2, ())
        torch.testing.assert_close(sync(batch), plain(batch))
    untracked = hvd.SyncBatchNorm(4, track_running_stats=False).double().eval()
    reference = nn.BatchNorm1d(4, track_running_stats=False).double().eval()
    torch.testing.assert_close(untracked(batch_of(0, 3, ())), reference(batch_of(0, 3, ())))
    assert untracked.running_mean is None


def test_without_tracking_training_still_synchronises():
    sync = hvd.SyncBatchNorm(4, track_running_stats=False).double()
    whole = torch.cat([batch_of(rank, 3, ()) for rank in range(hvd.size())])
    expected = nn.BatchNorm1d(4, track_running_stats=False).double()(whole)
    own = slice(3 * hvd.rank(), 3 * hvd.rank() + 3)
    torch.testing.assert_close(sync(whole[own]), expected[own])


def test_refused_inputs():
    sync = hvd.SyncBatchNorm(4)
    with pytest.raises(ValueError, match="at least 2D"):
        sync(torch.ones(4))
    if hvd.size() > 1:
        rows = 1 if hvd.rank() == 0 else 0
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            sync(torch.ones(rows, 4))


def network(layer):
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        layer(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 2),
        layer(4),
        nn.Flatten(),
        nn.LazyLinear(1),
    ).double()
    model(torch.zeros(2, 3, 6, 6).double())
    return model


def test_a_network_trains_like_one_process():
    torch.manual_seed(1)
    plain = network(nn.BatchNorm2d)
    model = network(nn.BatchNorm2d)
    for i in (1, 4):
        model[i] = hvd.SyncBatchNorm(4).double()
    model.load_state_dict(plain.state_dict())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters()
    )
    alone = torch.optim.SGD(plain.parameters(), lr=0.05)
    for step in range(3):
        images = torch.randn(
            4 * hvd.size(),
            3,
            6,
            6,
            dtype=torch.float64,
            generator=torch.Generator().manual_seed(step),
        )
        optimizer.zero_grad()
        alone.zero_grad()
        model(images[4 * hvd.rank() : 4 * hvd.rank() + 4]).square().mean().backward()
        plain(images).square().mean().backward()
        optimizer.step()
        alone.step()
    assert model[1]._layer != model[4]._layer or hvd.size() == 1
    for mine, theirs in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs)
