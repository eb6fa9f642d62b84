"""TensorData: what it accepts, what it becomes, what it refuses."""

from __future__ import annotations

import copy
import math
import pickle
from array import array
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tinker.types import TensorData as Official

from tests.unit.wire.strategies import ANY_TENSOR
from tinkex.errors import ValidationError
from tinkex.types import TensorData


@pytest.mark.parametrize(
    ("values", "dtype", "shape", "expected"),
    [
        ([1, 2], "int64", None, [1, 2]),
        ([0.5, 1], "float32", None, [0.5, 1.0]),
        ([], "int64", None, []),
        ((1, 2), "int64", None, [1, 2]),
        (range(3), "int64", None, [0, 1, 2]),
        (array("q", [5]), "int64", None, [5]),
        ([[1, 2], [3, 4]], "int64", [2, 2], [[1, 2], [3, 4]]),
        ([[[1.5]], [[2.5]]], "float32", [2, 1, 1], [[[1.5]], [[2.5]]]),
        ([[], []], "int64", [2, 0], [[], []]),
        ([True, False], "int64", None, [1, 0]),
        ([np.float32(0.5), np.float32(1.5)], "float32", None, [0.5, 1.5]),
        ([np.int32(3)], "int64", None, [3]),
        ([torch.tensor(2.5), torch.tensor(1.0)], "float32", None, [2.5, 1.0]),
        (np.array([1, 2], dtype=np.int16), "int64", [2], [1, 2]),
        (np.array([1.5], dtype=np.float64), "float32", [1], [1.5]),
        (np.array([[1.5], [2.5]], dtype=np.float16), "float32", [2, 1], [[1.5], [2.5]]),
        (np.arange(6).reshape(2, 3).T, "int64", [3, 2], [[0, 3], [1, 4], [2, 5]]),
        (np.array([], dtype=np.float32), "float32", [0], []),
        (torch.tensor([1, 2], dtype=torch.int32), "int64", [2], [1, 2]),
        (torch.tensor([1.5], dtype=torch.bfloat16), "float32", [1], [1.5]),
        (torch.tensor([1.5], dtype=torch.float64), "float32", [1], [1.5]),
        (torch.tensor([2.0], requires_grad=True), "float32", [1], [2.0]),
        (torch.tensor([[1.0, 0.0]]).to_sparse(), "float32", [1, 2], [[1.0, 0.0]]),
    ],
)
def test_values_become_int64_or_float32(
    values: Any, dtype: str, shape: list[int] | None, expected: list[Any]
) -> None:
    tensor = TensorData(values)
    assert (tensor.dtype, tensor.shape, tensor.tolist()) == (dtype, shape, expected)
    assert not tensor.is_sparse


@pytest.mark.parametrize(
    "values",
    [
        np.array([True]),
        np.array([1], dtype=np.uint8),
        np.array([1j]),
        np.array(["a"]),
        torch.tensor([True]),
        torch.tensor([1], dtype=torch.uint8),
        "abc",
        b"abc",
        ["ab", "cd"],
        [["a"]],
        5,
        None,
        {1: 2},
        [None],
        [2**63],
        [[1, 2], [3]],
        [[1], 2],
        [1, [2]],
    ],
    ids=repr,
)
def test_what_has_no_place_is_refused(values: Any) -> None:
    with pytest.raises(ValidationError):
        TensorData(values)


def test_a_requested_dtype_is_given_or_refused() -> None:
    assert TensorData([1, 2], "float32").data == [1.0, 2.0]
    assert TensorData(np.array([1, 2]), "float32").data == [1.0, 2.0]
    for values in ([1], np.array([1])):
        with pytest.raises(ValidationError, match="not one of"):
            TensorData(values, "int8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.0, 2.0], "int64"),
        ([-3.0, 2.0**53], "int64"),
        (["1", " -3 ", "+4"], "int64"),
        (["1", 2.0, True], "int64"),
        (["1.5", "1e3", "inf", "nan"], "float32"),
        ([["1", "2"], ["3", "4"]], "int64"),
        ("12", "int64"),
        (3, "int64"),
        (0.5, "float32"),
        (None, "int64"),
        (None, "float32"),
        (np.array([1.0, 2.0]), "int64"),
        (np.array(["1", "2"]), "int64"),
        (np.array([True, False]), "int64"),
        (np.array([1, 2], np.uint8), "float32"),
        (np.array([1, 2], object), "int64"),
        ([np.float32(2.0)], "int64"),
        (torch.tensor([1.0, 2.0]), "int64"),
        (torch.tensor([True]), "float32"),
    ],
    ids=repr,
)
def test_numbers_of_another_kind_are_converted_as_the_official_type_does(
    values: Any, dtype: Any
) -> None:
    ours, theirs = TensorData(values, dtype), Official(values, dtype)
    assert ours.dtype == theirs.dtype == dtype
    np.testing.assert_array_equal(ours.data, theirs.data)
    assert {type(each) for each in ours.data} == {type(each) for each in theirs.data}


@pytest.mark.parametrize(
    "values", [[1.5, -2.7], np.array([1.5, -2.7]), torch.tensor([1.5, -2.7])], ids=repr
)
def test_fractions_are_cut_as_the_official_type_does_with_a_warning(values: Any) -> None:
    with pytest.warns(UserWarning, match="cut towards zero") as caught:
        ours = TensorData(values, "int64")
    assert ours.data == Official(values, "int64").data == [1, -2]
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([math.nan], "int64"),
        ([math.inf], "int64"),
        ([1e19], "int64"),
        ([2**63], "int64"),
        ([None], "int64"),
        (["1.5"], "int64"),
        (["0x10"], "int64"),
        (["x"], "float32"),
        ([""], "float32"),
        ([1j], "float32"),
        ({1: 2}, "int64"),
        ({1, 2}, "int64"),
        (np.array(["x"]), "int64"),
    ],
    ids=repr,
)
def test_what_the_official_type_refuses_is_refused(values: Any, dtype: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        Official(values, dtype)
    with pytest.raises(ValidationError):
        TensorData(values, dtype)


def test_texts_need_a_dtype() -> None:
    for values in (["1"], ["1.5"], "1", np.array(["1"])):
        with pytest.raises(ValidationError):
            TensorData(values)


def test_shape_must_fit() -> None:
    assert TensorData([1, 2, 3, 4], "int64", [2, 2]).tolist() == [[1, 2], [3, 4]]
    for shape in ([3], [-1, -4], [2, 2, 2]):
        with pytest.raises(ValidationError, match="does not fit"):
            TensorData([1, 2, 3, 4], "int64", shape)
    with pytest.raises(ValidationError, match="no whole number"):
        TensorData.from_bytes(b"abc", "float32")
    with pytest.raises(ValidationError):
        TensorData.from_bytes(b"abcd", "int8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "crow", "col", "message"),
    [
        ([2, 3], [0, 1], [0], "3 steps"),
        ([2, 3], [1, 1, 1], [0], "run from 0"),
        ([2, 3], [0, 1, 2], [0], "run from 0"),
        ([2, 3], [], [0], "run from 0"),
        ([2, 3], [0, 1, 1], [3], "below 3"),
        ([2, 3], [0, 1, 1], [-1], "below 3"),
        ([2, 3], [0, 2, 2], [0, 1], "each of the 1"),
        ([3, 3], [0, 1, 0, 1], [0], "never decrease"),
        ([6], [0, 1], [0], "2-D"),
        (None, [0, 1], [0], "2-D"),
        ([2, 3], [0, 1, 1], None, "both"),
    ],
)
def test_sparse_indices_must_fit(
    shape: list[int] | None, crow: list[int], col: list[int] | None, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        TensorData([5.0], "float32", shape, crow, col)


def test_sparse_tensors_can_be_made_dense_with_any_fill() -> None:
    sparse = TensorData([7, 8], "int64", [2, 3], [0, 1, 2], [2, 0])
    assert sparse.is_sparse
    assert sparse.tolist() == [[0, 0, 7], [8, 0, 0]]
    assert sparse.to_dense(fill=-1).tolist() == [[-1, -1, 7], [8, -1, -1]]
    assert sparse.to_numpy().tolist() == sparse.tolist()
    assert sparse.to_torch().tolist() == sparse.tolist()
    assert len(sparse) == 2
    assert sparse.size_bytes == 2 * 8 + 5 * 8
    assert sparse.to_sparse() is sparse
    assert not sparse.is_smaller_sparse
    assert "sparse" in repr(sparse)


def test_sparse_form_needs_two_dimensions() -> None:
    with pytest.raises(ValidationError, match="2-D"):
        TensorData([1, 2]).to_sparse()
    assert not TensorData([1, 2]).is_smaller_sparse


MATRICES = st.integers(0, 6).flatmap(
    lambda rows: st.integers(1, 6).flatmap(
        lambda cols: st.lists(
            st.lists(st.sampled_from([0, 0, 0, -1, 5]), min_size=cols, max_size=cols),
            min_size=rows,
            max_size=rows,
        ).map(lambda values: torch.tensor(values, dtype=torch.int64).reshape(rows, cols))
    )
)


@given(MATRICES, st.sampled_from([0, -1]))
def test_matrices_are_sparsified_as_the_official_client_does(
    matrix: torch.Tensor, pad_value: int
) -> None:
    ours = TensorData.from_torch_sparse(matrix, pad_value)
    theirs = Official.from_torch_sparse(matrix, pad_value=pad_value)
    assert ours.sparse_crow_indices == theirs.sparse_crow_indices
    assert ours.sparse_col_indices == theirs.sparse_col_indices
    assert (ours.data, ours.shape) == (theirs.data, theirs.shape)
    assert ours.to_dense(fill=pad_value).tolist() == matrix.tolist()
    if pad_value == 0 and ours.shape[0]:  # type: ignore[index]
        assert TensorData(matrix).is_smaller_sparse == ours.is_sparse


@given(MATRICES)
def test_dense_and_sparse_forms_hold_the_same_values(matrix: torch.Tensor) -> None:
    dense = TensorData(matrix)
    assert dense.to_sparse().tolist() == dense.tolist()
    assert dense.to_dense() is dense


def test_vectors_stay_dense() -> None:
    tensor = TensorData.from_torch_sparse(torch.tensor([0, 0, 0, 1]))
    assert (tensor.is_sparse, tensor.tolist()) == (False, [0, 0, 0, 1])


@given(ANY_TENSOR)
def test_tensors_survive_numpy_torch_bytes_and_pickle(tensor: TensorData) -> None:
    assert pickle.loads(pickle.dumps(tensor)) == tensor
    assert copy.deepcopy(tensor) == tensor
    assert hash(copy.deepcopy(tensor)) == hash(tensor)
    dense = tensor.to_dense()
    assert TensorData.from_numpy(tensor.to_numpy()) == dense
    assert TensorData.from_torch(tensor.to_torch()) == dense
    assert TensorData.from_bytes(dense.raw, dense.dtype, dense.shape) == dense


def test_array_that_was_given_can_change_without_harm() -> None:
    values = np.array([1.0, 2.0], dtype=np.float32)
    tensor = TensorData(values)
    values[0] = 9
    assert tensor.data == [1.0, 2.0]
    tensor.to_numpy()[0] = 9
    assert tensor.data == [1.0, 2.0]


def test_equality_looks_at_everything() -> None:
    tensor = TensorData([1, 2, 3, 4], "int64", [2, 2])
    assert tensor != TensorData([1, 2, 3, 4], "int64", [4])
    assert tensor != TensorData([1, 2, 3, 5], "int64", [2, 2])
    assert tensor != [1, 2, 3, 4]
    assert TensorData([0], "int64") != TensorData([0.0, 0.0], "float32")


def test_repr_is_short() -> None:
    assert repr(TensorData([1, 2])) == "TensorData([1, 2], 'int64', shape=None)"
    assert "..." in repr(TensorData(list(range(100)))) or "Ellipsis" in repr(
        TensorData(list(range(100)))
    )
    assert len(repr(TensorData(list(range(100_000))))) < 200


def test_length_is_the_first_dimension() -> None:
    assert len(TensorData([[1, 2, 3], [4, 5, 6]])) == 2
    assert len(TensorData([1, 2, 3])) == 3
    assert len(TensorData(np.array(2.5))) == 1
    assert TensorData(np.array(2.5)).to_numpy().shape == ()
    assert math.isclose(TensorData(np.array(2.5)).data[0], 2.5)
