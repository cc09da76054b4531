"""What torch adds to the collectives: memory layouts, views, in-place results, handles, errors.

The operations themselves, over all dtypes, are tested by tests/conformance.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import horovod.torch as hvd

LAUNCHES = ["-np 1", "-np 2", "-np 3"]

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def image(rank):
    values = torch.arange(2 * 3 * 4 * 4, dtype=torch.float32).reshape(2, 3, 4, 4)
    return values * (rank + 1)


def total(make):
    return sum(make(rank) for rank in range(hvd.size()))


LAYOUTS = {
    "contiguous": lambda t: t.clone(),
    "channels last": lambda t: t.clone(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(1, 3).contiguous().transpose(1, 3),
    "view with gaps": lambda t: torch.stack([t, -t], dim=-1)[..., 0],
    "slice": lambda t: torch.cat([t, t], dim=1)[:, :3],
    "reversed order": lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides_are_reduced_element_by_element(layout):
    tensor = LAYOUTS[layout](image(hvd.rank()))
    before = tensor.clone()
    result = hvd.allreduce(tensor, op=hvd.Sum)
    assert torch.equal(result, total(image))
    assert torch.equal(tensor, before)
    if layout in ("contiguous", "channels last", "transposed", "reversed order"):
        assert result.stride() == tensor.stride()
    same = hvd.allreduce_(tensor, op=hvd.Sum)
    assert same is tensor
    assert torch.equal(tensor, total(image))


def test_ranks_with_different_strides_get_the_same_values():
    layouts = list(LAYOUTS.values())
    tensor = layouts[hvd.rank() % len(layouts)](image(hvd.rank()))
    assert torch.equal(hvd.allreduce(tensor, op=hvd.Sum), total(image))
    assert torch.equal(hvd.broadcast(tensor, hvd.size() - 1), image(hvd.size() - 1))
    gathered = hvd.allgather(tensor)
    assert torch.equal(gathered, torch.cat([image(rank) for rank in range(hvd.size())]))
    hvd.broadcast_(tensor, 0)
    assert torch.equal(tensor, image(0))


def test_in_place_writes_only_through_the_view():
    base = torch.zeros(4, 6)
    view = base[:, ::2]
    view += hvd.rank() + 1
    hvd.allreduce_(view, op=hvd.Sum)
    assert torch.equal(base[:, ::2], torch.full((4, 3), sum(range(1, hvd.size() + 1))).float())
    assert not base[:, 1::2].any()


def test_expanded_conjugated_and_negated_tensors():
    expanded = torch.tensor([[hvd.rank() + 1.0]]).expand(3, 4)
    assert torch.equal(hvd.allreduce(expanded, op=hvd.Max), torch.full((3, 4), float(hvd.size())))
    numbers = torch.tensor([1 + 2j, 3 - 1j])
    assert torch.equal(hvd.allreduce(numbers.conj()), torch.tensor([1 - 2j, 3 + 1j]))
    negated = numbers.conj().imag
    assert negated.is_neg()
    assert torch.equal(hvd.allreduce(negated), torch.tensor([-2.0, 1.0]))
    conjugated = torch.tensor([1 + 2j]).conj()
    hvd.allreduce_(conjugated, op=hvd.Sum)
    assert conjugated.resolve_conj().item() == hvd.size() * (1 - 2j)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, *COMPLEX, torch.bool], ids=str)
def test_every_dtype_comes_back_as_it_is(dtype):
    tensor = torch.ones(5).to(dtype)
    for result in (
        hvd.allreduce(tensor, op=hvd.Sum),
        hvd.broadcast(tensor, 0),
        hvd.allgather(tensor)[:5],
        hvd.alltoall(tensor.repeat(hvd.size()))[:5],
        hvd.reducescatter(tensor.repeat(hvd.size()), op=hvd.Sum),
    ):
        assert result.dtype == dtype
        assert result.shape == (5,)
    result = hvd.allreduce(tensor, op=hvd.Sum)
    expected = torch.ones(5) if dtype == torch.bool else torch.full((5,), float(hvd.size()))
    assert torch.equal(result, expected.to(dtype))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 0, 3)])
def test_scalars_and_empty_tensors(shape):
    tensor = torch.ones(shape)
    assert torch.equal(hvd.allreduce(tensor, op=hvd.Sum), tensor * hvd.size())
    assert torch.equal(hvd.broadcast(tensor, 0), tensor)
    if shape:
        assert hvd.allgather(tensor).shape == (shape[0] * hvd.size(), *shape[1:])
    else:
        with pytest.raises(ValueError, match="first dimension"):
            hvd.allgather(tensor)
        with pytest.raises(ValueError, match="first dimension"):
            hvd.reducescatter(tensor)


def test_results_of_the_engine_are_ordinary_tensors():
    gathered = hvd.allgather(torch.full((2, 2), float(hvd.rank())))
    gathered.resize_(hvd.size() * 2, 2)
    gathered += 1
    gc.collect()
    parameter = torch.nn.Parameter(gathered)
    (parameter * parameter).sum().backward()
    assert torch.equal(parameter.grad, 2 * gathered)


def test_in_place_tells_autograd_that_the_tensor_changed():
    tensor = torch.ones(3)
    weight = torch.ones(3, requires_grad=True)
    product = tensor * weight
    hvd.allreduce_(tensor, op=hvd.Sum)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_in_place_on_a_leaf_that_requires_a_gradient():
    leaf = torch.full((2, 2), float(hvd.rank()), requires_grad=True)
    assert hvd.broadcast_(leaf, hvd.size() - 1) is leaf
    assert leaf.requires_grad
    assert torch.equal(leaf.data, torch.full((2, 2), hvd.size() - 1.0))
    column = torch.full((2, 2), float(hvd.rank())).t()[:, :1].requires_grad_()
    hvd.allreduce_(column, op=hvd.Max)
    assert torch.equal(column.data, torch.full((2, 1), hvd.size() - 1.0))


def test_inference_mode():
    with torch.inference_mode():
        tensor = torch.ones(3)
        assert torch.equal(hvd.allreduce(tensor, op=hvd.Sum), torch.full((3,), float(hvd.size())))
        hvd.allreduce_(tensor, op=hvd.Sum)
        assert hvd.allgather(tensor).shape == (3 * hvd.size(),)
        assert torch.equal(tensor, torch.full((3,), float(hvd.size())))


def test_tensors_freed_right_after_an_asynchronous_call():
    handles = [hvd.allreduce_async(torch.full((1000,), float(i)), name=f"f{i}") for i in range(50)]
    gc.collect()
    noise = [torch.randn(1000) for _ in range(50)]
    for i, handle in enumerate(handles):
        assert torch.equal(hvd.synchronize(handle), torch.full((1000,), float(i)))
    del noise


def test_handles_poll_and_can_be_waited_for_in_any_order():
    tensors = [torch.full((10,), float(i)) for i in range(8)]
    handles = [hvd.allreduce_async(tensor, op=hvd.Sum) for tensor in tensors]
    assert all(isinstance(handle, int) for handle in handles)
    for i in reversed(range(8)):
        result = hvd.synchronize(handles[i])
        assert torch.equal(result, tensors[i] * hvd.size())
    assert hvd.synchronize(handles[0]) is None
    handle = hvd.allreduce_async_(tensors[3], op=hvd.Sum, name="polled")
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle) is tensors[3]


def test_every_asynchronous_form():
    rank, size = hvd.rank(), hvd.size()
    ones = torch.ones(2 * size)
    handles = [
        hvd.grouped_allreduce_async([ones, ones * 2], op=hvd.Sum),
        hvd.allgather_async(ones),
        hvd.grouped_allgather_async([ones, ones]),
        hvd.broadcast_async(ones * rank, 0),
        hvd.alltoall_async(ones),
        hvd.reducescatter_async(ones, op=hvd.Sum),
        hvd.grouped_reducescatter_async([ones, ones], op=hvd.Sum),
    ]
    results = [hvd.synchronize(handle) for handle in handles]
    assert [t[0].item() for t in results[0]] == [size, 2 * size]
    assert results[1].shape == (2 * size * size,)
    assert len(results[2]) == 2
    assert not results[3].any()
    output, received_splits = results[4]
    assert output.shape == (2 * size,)
    assert received_splits.tolist() == [2] * size
    assert results[5].tolist() == [size, size]
    assert len(results[6]) == 2
    in_place = [torch.full((3,), float(rank)), torch.full((2, 2), float(rank)).t()]
    hvd.synchronize(hvd.grouped_allreduce_async_(in_place, op=hvd.Max))
    hvd.synchronize(hvd.broadcast_async_(in_place[0], 0))
    assert [t.flatten()[0].item() for t in in_place] == [size - 1, size - 1]


def test_groups_take_mixed_dtypes_and_layouts_and_may_be_empty():
    tensors = [
        torch.ones(3),
        torch.ones(2, dtype=torch.int64),
        LAYOUTS["channels last"](image(hvd.rank())),
        torch.ones(0),
        torch.tensor(2.0),
    ]
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    assert [r.dtype for r in results] == [t.dtype for t in tensors]
    assert torch.equal(results[2], total(image))
    assert results[2].stride() == tensors[2].stride()
    returned = hvd.grouped_allreduce_(tensors, op=hvd.Sum)
    assert all(mine is theirs for mine, theirs in zip(returned, tensors, strict=True))
    assert hvd.grouped_allreduce([]) == []
    assert hvd.grouped_allgather([]) == []
    assert hvd.grouped_reducescatter([]) == []


def test_alltoall_returns_splits_only_when_given_some():
    size, rank = hvd.size(), hvd.rank()
    splits = [(rank + peer) % 3 for peer in range(size)]
    rows = torch.full((sum(splits), 2), float(rank))
    output, received = hvd.alltoall(rows, splits=torch.tensor(splits, dtype=torch.int32))
    assert received.dtype == torch.int32
    assert received.tolist() == [(peer + rank) % 3 for peer in range(size)]
    expected = [torch.full(((peer + rank) % 3, 2), float(peer)) for peer in range(size)]
    assert torch.equal(output, torch.cat(expected))
    assert torch.equal(hvd.alltoall(rows, splits=splits)[0], output)
    assert isinstance(hvd.alltoall(torch.ones(size)), torch.Tensor)


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16])
def test_compression_is_undone(compression):
    for tensor in (torch.ones(4), torch.ones(4).double(), torch.ones(4, dtype=torch.int32)):
        result = hvd.allreduce(tensor, op=hvd.Sum, compression=compression)
        assert result.dtype == tensor.dtype
        assert torch.equal(result, tensor * hvd.size())
        (result,) = hvd.grouped_allreduce([tensor], op=hvd.Sum, compression=compression)
        assert result.dtype == tensor.dtype
        wide = tensor.repeat(hvd.size())
        assert hvd.reducescatter(wide, compression=compression).dtype == tensor.dtype


def test_average_and_op():
    tensor = torch.tensor([hvd.rank() + 1.0])
    with pytest.warns(DeprecationWarning):
        assert hvd.allreduce(tensor, average=False).item() == sum(range(1, hvd.size() + 1))
    with pytest.warns(DeprecationWarning):
        hvd.allreduce_(tensor.clone(), True)
    with pytest.raises(ValueError, match="supersedes average"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)
    assert hvd.allreduce(tensor, op=hvd.Product).item() == np.prod(range(1, hvd.size() + 1))
    assert hvd.allreduce(tensor, op=int(hvd.Max)).item() == hvd.size()


WRONG_CALLS = {
    "no tensor": (TypeError, lambda: hvd.allreduce(np.ones(3))),
    "list": (TypeError, lambda: hvd.allgather([1, 2])),
    "dtype": (ValueError, lambda: hvd.allreduce(torch.ones(3, dtype=torch.float8_e4m3fn))),
    "unsigned": (ValueError, lambda: hvd.allreduce(torch.ones(3, dtype=torch.uint32))),
    "meta": (ValueError, lambda: hvd.allreduce(torch.ones(3, device="meta"))),
    "devices": (
        RuntimeError,
        lambda: hvd.grouped_allreduce([torch.ones(3), torch.ones(3, device="meta")]),
    ),
    "bool average": (ValueError, lambda: hvd.allreduce(torch.ones(3, dtype=torch.bool))),
    "complex max": (ValueError, lambda: hvd.allreduce(torch.ones(3) * 1j, op=hvd.Max)),
    "adasum": (NotImplementedError, lambda: hvd.allreduce(torch.ones(3), op=hvd.Adasum)),
    "root": (ValueError, lambda: hvd.broadcast(torch.ones(3), root_rank=99)),
    "splits dtype": (ValueError, lambda: hvd.alltoall(torch.ones(4), torch.tensor([1, 1]))),
    "splits dimensions": (
        ValueError,
        lambda: hvd.alltoall(torch.ones(4), torch.ones(1, 1, dtype=torch.int32)),
    ),
    "splits number": (
        ValueError,
        lambda: hvd.alltoall(torch.ones(9), torch.ones(9, dtype=torch.int32)),
    ),
    "splits sum": (
        ValueError,
        lambda: hvd.alltoall(torch.ones(1), torch.full((hvd.size(),), 7, dtype=torch.int32)),
    ),
    "reducescatter max": (RuntimeError, lambda: hvd.reducescatter(torch.ones(4), op=hvd.Max)),
    "process set": (
        ValueError,
        lambda: hvd.allreduce(torch.ones(3), process_set=hvd.ProcessSet([0])),
    ),
}


@pytest.mark.parametrize("wrong", WRONG_CALLS)
def test_a_wrong_call_is_refused_at_once_and_disturbs_nobody(wrong):
    error, call = WRONG_CALLS[wrong]
    with pytest.raises(error):
        call()
    assert hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Max).item() == hvd.size()


def test_a_wrong_call_on_one_rank_alone_counts_like_the_right_one_on_the_others():
    """Unnamed operations are numbered: those that follow must still meet their partners."""
    if hvd.size() == 1:
        pytest.skip("one rank has no partners")
    wrong_rank = hvd.rank() == 0
    if wrong_rank:
        with pytest.raises(ValueError, match="float8"):
            hvd.allreduce(torch.ones(2, dtype=torch.float8_e4m3fn))
    else:
        before = copy.copy(hvd.global_process_set.numbers)
        waiting = hvd.allreduce_async(torch.ones(2), op=hvd.Sum)
    assert hvd.broadcast_object("still in step" if wrong_rank else None) == "still in step"
    if wrong_rank:  # complete what the others still wait for
        number = hvd.broadcast_object(None, root_rank=1)
        hvd.allreduce(torch.ones(2), name=f"noname.{number}", op=hvd.Sum)
    else:
        hvd.broadcast_object(next(before), root_rank=1)
        assert hvd.synchronize(waiting)[0].item() == hvd.size()


def test_errors_name_the_operation_its_dtype_and_shape():
    with pytest.raises(ValueError, match=r"float8_e4m3fn is not.*float16.*\[2, 3\].*'loss'"):
        hvd.allreduce(torch.ones(2, 3, dtype=torch.float8_e4m3fn), name="loss")


def test_a_name_in_flight_twice_is_refused_and_the_first_completes():
    if hvd.size() == 1:
        pytest.skip("alone, the first operation is done before the second can be submitted")
    gate = torch.ones(2)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(gate, name="twice", op=hvd.Sum)
        with pytest.raises(ValueError, match="same name as another tensor"):
            hvd.allreduce_async(gate, name="twice")
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(gate, name="twice", op=hvd.Sum)
    assert torch.equal(hvd.synchronize(handle), gate * hvd.size())


def test_disagreement_raises_on_all_ranks_and_the_api_stays_usable():
    if hvd.size() == 1:
        pytest.skip("one rank cannot disagree")
    for tensor in (torch.ones(hvd.rank() + 1), torch.ones(2, dtype=FLOATS[2 + hvd.rank() % 2])):
        with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
            hvd.allreduce(tensor, name="disagree")
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="disagree").item() == hvd.size()


def test_the_public_names_and_their_old_homes():
    for name in hvd.__all__:
        assert getattr(hvd, name) is not None
    from horovod.torch.mpi_ops import HorovodAllreduce, _basics, allreduce, is_homogeneous, rank

    assert allreduce is hvd.allreduce
    assert rank() == hvd.rank()
    assert is_homogeneous()
    assert issubclass(HorovodAllreduce, torch.autograd.Function)
    assert _basics._get_process_set_ids_and_ranks() == {0: list(range(hvd.size()))}
    with pytest.raises(NotImplementedError, match="elastic"):
        hvd.elastic.run(lambda state: None)
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.DistributedOptimizer(
            torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), op=hvd.Adasum
        )
