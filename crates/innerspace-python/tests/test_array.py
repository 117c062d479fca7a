"""Arrays in files, beside numpy.memmap on the same bytes."""

import itertools
import os
import warnings

import numpy as np
import pytest

import innerspace
from innerspace import Array

SHAPE = (7, 11, 13)


@pytest.fixture(params=["<i4", ">f8", "u1", "c16"])
def pair(request, memory, tmp_path):
    """The same random array as one of ours and as one of numpy's."""
    rng = np.random.default_rng(3)
    array = rng.integers(0, 200, SHAPE).astype(request.param)
    path = tmp_path / "array.bin"
    path.write_bytes(b"head" + array.tobytes())
    ours = memory.array(path, request.param, SHAPE, "r+", 4)
    return ours, array


BASIC = [
    3, -1, (2, 5), (2, 5, -13), slice(None), slice(2, 6, 3), slice(None, None, -2), slice(5, 5),
    (slice(None), 3), (..., 2), (2, ...), (None, 3, None, ..., slice(1, 9, 4)), (..., None), ...,
    (slice(6, 1, -2), slice(None), slice(12, None, -5)), (), (np.int64(2), np.uint8(3)), (1, 2, 3, ...),
    (slice(100, 200), 0), (True,)[:0],
]
FANCY = [
    [0, 3, 3, -1], ([1, 2], [3, 4]), ([1, 2], slice(None), [3, 4]), (slice(None), [5, 1], 2),
    (slice(None), [[5], [1]], [2, 3]), ([1, 2], None, [3, 4]), (None, [1, 2]), (2, slice(1, 4), [0, 5]),
    (0, [1, 2]), ([], ), [], np.zeros(7, bool), np.arange(7) % 2 == 0, (slice(None), np.arange(11) > 4),
    (np.arange(7) < 3, slice(None, None, -3), [0]), (..., [1, 0]), ([3], ..., [4]), True, False,
    (True, [1, 2]), np.array([[1, 2], [3, 4]]), np.ones((7, 11), bool), (slice(2, 2), [1, 2]),
    np.random.default_rng(0).random(SHAPE) > 0.5, (slice(1, 5, 2), np.ones((11, 13), bool)),
    (np.array(3), [1, 2]), (slice(None, None, -1), [1], slice(3, 9, 2)),
]


@pytest.mark.parametrize("index", BASIC + FANCY, ids=str)
def test_indexing_is_numpys(pair, index):
    ours, array = pair
    expected = array[index]
    got = ours[index]
    assert got.shape == expected.shape and got.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(got), expected)
    if isinstance(expected, np.ndarray):
        kind = np.ndarray if any(index is one for one in FANCY) else Array
        assert type(got) is kind
    else:
        assert type(got) is type(expected)


@pytest.mark.parametrize("index", BASIC + FANCY, ids=str)
def test_assignment_is_numpys(pair, index):
    ours, array = pair
    values = np.arange(array[index].size).reshape(array[index].shape) % 100
    for value in [7, values]:
        array[index] = value
        ours[index] = value
        np.testing.assert_array_equal(np.asarray(ours), array)


WRONG = [
    7, -8, (0, 11), (0, 0, 0, 0), [7], [-8], ([1, 2], [3, 4, 5]), np.zeros(6, bool), "x", 1.5, [1.5],
    (..., ...), (slice(None), np.ones((11, 12), bool)), ([0], 0, 0, 0), np.ones((7, 11, 13, 1), bool),
]


@pytest.mark.parametrize("index", WRONG, ids=str)
def test_wrong_indices_are_refused_as_numpy_does(pair, index):
    ours, array = pair
    with pytest.raises(IndexError) as expected:
        array[index]
    with pytest.raises(IndexError) as got:
        ours[index]
    assert str(got.value).split(";")[0][:40] == str(expected.value).split(";")[0][:40]
    with pytest.raises(IndexError):
        ours[index] = 1


def test_random_indices(memory, tmp_path):
    rng = np.random.default_rng(9)

    def one(length):
        kind = rng.integers(4)
        if kind == 0:
            return int(rng.integers(-length, length))
        if kind == 1:
            return rng.integers(-length, length, 3)
        if kind == 2:
            return rng.random(length) > 0.5
        ends = [None, *range(-length - 2, length + 3)]
        step = int(rng.choice([-3, -2, -1, 1, 2, 3]))
        return slice(ends[rng.integers(len(ends))], ends[rng.integers(len(ends))], step)

    for order in "CF":
        shape = (6, 5, 8, 3)
        array = np.asarray(rng.integers(0, 1000, shape, dtype="i4"), order=order)
        path = tmp_path / f"{order}.bin"
        path.write_bytes(array.tobytes(order))
        ours = memory.array(path, "i4", shape, "r+", order=order)
        assert ours.strides == array.strides
        tried = 0
        for _ in range(400):
            index = [one(length) for length in shape][: rng.integers(1, 5)]
            if rng.random() < 0.3:
                index.insert(rng.integers(len(index) + 1), None)
            if rng.random() < 0.3 and len(index) < 4:
                index.insert(rng.integers(len(index) + 1), ...)
            index = tuple(index)
            try:
                with warnings.catch_warnings():
                    # An index out of bounds in an empty result: an error in numpy 2.1 and later.
                    warnings.simplefilter("error", DeprecationWarning)
                    expected = array[index]
            except (IndexError, DeprecationWarning):
                with pytest.raises(IndexError):
                    ours[index]
                continue
            tried += 1
            got = ours[index]
            assert got.shape == expected.shape, index
            np.testing.assert_array_equal(np.asarray(got), expected, str(index))
            array[index] = tried
            ours[index] = tried
        assert tried > 100
        np.testing.assert_array_equal(np.asarray(ours), array)


def test_views_are_views(pair):
    ours, array = pair
    part = ours[2:6, ::-2][1]
    part[3] = 9
    array[2:6, ::-2][1][3] = 9
    np.testing.assert_array_equal(np.asarray(ours), array)
    assert part.filename == ours.filename and part.offset == ours.offset == 4 and part.mode == "r+"


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "min", "max", "any", "all"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (0, 1, 2)])
def test_reductions_are_numpys(pair, name, axis):
    ours, array = pair
    for keepdims, part in itertools.product([False, True], [slice(None), (slice(1, 6, 2), ..., slice(None, None, -3))]):
        if name == "prod":
            part = (slice(1), slice(2), slice(2)) if part == slice(None) else part
            if array.dtype.kind == "f":
                continue
        expected = getattr(np, name)(array[part], axis=axis, keepdims=keepdims)
        got = getattr(np, name)(ours[part], axis=axis, keepdims=keepdims)
        assert type(got) is type(expected)
        if isinstance(expected, np.ndarray):
            assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_reductions_of_many_blocks(tmp_path):
    memory = innerspace.Memory("1MiB")
    array = np.random.default_rng(2).random((500, 1000)).astype("f4")
    np.save(tmp_path / "a.npy", array)
    ours = memory.open_npy(tmp_path / "a.npy")
    assert ours.shape == (500, 1000) and ours.offset == 128 and len(list(ours.blocks())) > 10
    for name, axis in itertools.product(["sum", "mean", "min", "max"], [None, 0, 1]):
        got, expected = getattr(ours, name)(axis=axis), getattr(array, name)(axis=axis)
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=2e-5)
    np.testing.assert_allclose(ours.sum(dtype="f8"), array.sum(dtype="f8"), rtol=1e-12)
    np.testing.assert_allclose(ours[:, 5].mean(), array[:, 5].mean(), rtol=1e-6)
    np.testing.assert_array_equal(np.stack(list(ours)), array)
    np.testing.assert_array_equal([row[3] for row in ours[::-7]], array[::-7, 3])
    out = np.empty(1000, "f8")
    assert ours.sum(axis=0, out=out) is out
    assert ours.max() in ours and 2.0 not in ours
    assert np.array_equal(ours.read_into(np.empty_like(array)), array)
    for call in [lambda: ours.sum(axis=2), lambda: ours.sum(axis=(0, 0)), lambda: ours[:0].min()]:
        with pytest.raises(ValueError):
            call()
    with pytest.raises(TypeError, match="where"):
        ours.sum(where=array > 0.5)
    assert ours[:0].sum() == 0 and ours[:0].sum(axis=1).shape == (0,)


def test_a_copy_above_the_limit_is_refused(tmp_path):
    memory = innerspace.Memory("1MiB")
    path = tmp_path / "big.bin"
    with open(path, "wb") as file:
        file.truncate(64 << 20)
    ours = memory.array(path, "f8")
    for call in [
        lambda: np.asarray(ours),
        lambda: ours + 1,
        lambda: ours.tolist(),
        lambda: ours[np.ones(len(ours), bool)],
        lambda: ours.reshape(2, -1).sum(axis=0),
    ]:
        with pytest.raises(innerspace.LimitError, match="outside the limit of"):
            call()
    assert ours.sum() == 0 and np.asarray(ours[: 1 << 16]).sum() == 0
    assert memory.stats()["peak"] <= 1 << 20
    with pytest.raises(ValueError):
        np.array(ours[:5], copy=False)


def test_bad_arguments(memory, path, tmp_path):
    size = 1 << 20
    wrong = [
        dict(mode="q"), dict(mode="c"), dict(mode="w+"), dict(dtype="O"), dict(offset=-1),
        dict(dtype="f8", offset=3), dict(shape=(size + 1,)), dict(shape=(-1,)), dict(order="K"),
        dict(dtype="V0"), dict(dtype=np.dtype(("f4", 3))), dict(shape=1 << 62, dtype="f8"),
        dict(offset=size + 8, dtype="f8"),
    ]
    for arguments in wrong:
        with pytest.raises(ValueError):
            memory.array(path, **arguments)
    for arguments in [dict(dtype="nonsense"), dict(shape="x"), dict(offset="x"), dict(shape=1.5)]:
        with pytest.raises(TypeError):
            memory.array(path, **arguments)
    assert path.stat().st_size == size
    ours = memory.array(path, "f8", (10, 10))
    with pytest.raises(ValueError, match="read-only"):
        ours[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        ours += 1
    for call in [lambda: ours.reshape(7), lambda: ours.T.reshape(100), lambda: ours.view("f4"), lambda: bool(ours)]:
        with pytest.raises(ValueError):
            call()
    with pytest.raises(TypeError):
        float(ours)
    with pytest.raises(TypeError):
        len(ours[0, 0, ...])
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty file"):
        memory.array(tmp_path / "empty", shape=(0, 4))
    (tmp_path / "no.npy").write_bytes(b"not an array")
    with pytest.raises(innerspace.FileError, match="npy format"):
        memory.open_npy(tmp_path / "no.npy")
    np.save(tmp_path / "cut.npy", np.arange(100))
    os.truncate(tmp_path / "cut.npy", 200)
    with pytest.raises(innerspace.FileError, match="promises"):
        memory.open_npy(tmp_path / "cut.npy")
    np.save(tmp_path / "object.npy", np.array([{}]))
    with pytest.raises(ValueError, match="objects"):
        memory.open_npy(tmp_path / "object.npy")
    with pytest.raises(FileNotFoundError):
        memory.array(tmp_path / "missing")


def test_wrong_assignments(pair):
    ours, _ = pair
    for index, value in [(slice(None), np.zeros(5)), (0, np.zeros((2, 11, 13))), ([1, 2], np.zeros(5))]:
        with pytest.raises(ValueError):
            ours[index] = value


def test_new_and_longer_files(memory, tmp_path):
    path = tmp_path / "new.bin"
    ours = memory.array(path, "f4", (3, 4), "w+", offset=1)
    ours[:] = np.arange(12).reshape(3, 4)
    ours.flush()
    assert path.stat().st_size == 49
    np.testing.assert_array_equal(np.memmap(path, "f4", "r", 1, (3, 4)), np.arange(12).reshape(3, 4))
    del ours
    longer = memory.array(path, "f4", (5, 4), "r+", offset=1)
    assert path.stat().st_size == 81 and longer[4].sum() == 0 and longer[2, 3] == 11
    for version in [(1, 0), (2, 0), (3, 0)]:
        npy = tmp_path / f"{version[0]}.npy"
        with open(npy, "wb") as file:
            np.lib.format.write_array(file, np.asfortranarray(np.ones((3, 5), "i2")), version=version)
        ours = memory.open_npy(npy, "r+")
        assert ours.strides == (2, 6) and ours.sum() == 15


def test_structured_elements(memory, tmp_path):
    dtype = np.dtype([("a", "i4"), ("b", "f8", (2,)), ("c", "S3")])
    array = np.zeros((4, 5), dtype)
    array["a"] = np.arange(20).reshape(4, 5)
    path = tmp_path / "records.bin"
    path.write_bytes(array.tobytes())
    ours = memory.array(path, dtype, (4, 5), "r+")
    np.testing.assert_array_equal(ours["a"][1:, ::2], array["a"][1:, ::2])
    assert ours["b"].shape == (4, 5, 2)
    ours["b"][2] = 1.5
    ours["c"] = b"xyz"
    array["b"][2], array["c"] = 1.5, b"xyz"
    ours[0, 0] = (7, [1, 2], b"q")
    array[0, 0] = (7, [1, 2], b"q")
    assert np.array_equal(np.asarray(ours), array) and ours[0, 0]["a"] == 7
    assert ours[["a", "c"]][3, 3] == array[["a", "c"]][3, 3]
    with pytest.raises(ValueError, match="no field"):
        ours["z"]


def test_ufuncs_and_conversions(pair):
    ours, array = pair
    assert type(ours + 1) is np.ndarray and np.array_equal(1 + ours, array + 1)
    assert np.array_equal(ours == array, np.ones(SHAPE, bool)) and np.array_equal(np.add(ours, ours), array + array)
    ours += 1
    array += 1
    assert type(ours) is Array and np.array_equal(np.asarray(ours), array)
    np.multiply(ours, 2, out=ours)
    array *= 2
    ours[1:] += ours[:-1]
    array[1:] += array[:-1].copy()
    assert np.array_equal(np.asarray(ours), array)
    one = ours[1, 2, 3, ...]
    assert one.item() == array[1, 2, 3] == ours.item(1, 2, 3) == ours.item(1 * 143 + 2 * 13 + 3)
    assert complex(one) == complex(array[1, 2, 3])
    assert np.array_equal(ours.T[4], array.T[4]) and np.array_equal(ours.transpose(1, 0, 2), array.transpose(1, 0, 2))
    assert np.array_equal(np.asarray(ours.reshape(-1, 13)), array.reshape(-1, 13))
    assert ours.astype("c16").dtype == "c16"
    assert ours.view("V%d" % ours.itemsize).dtype.kind == "V" and "7x11x13" in repr(ours)
    assert ours.size == array.size and ours.nbytes == array.nbytes and ours.ndim == 3 and len(ours) == 7
    with pytest.raises(ValueError, match="shape"):
        np.add(ours, np.zeros((2, *SHAPE)), out=ours)
    with pytest.raises(TypeError):
        np.add.reduce(np.zeros(SHAPE), out=ours[0])


def test_dask(tmp_path):
    dask_array = pytest.importorskip("dask.array")
    array = np.random.default_rng(4).random((2000, 500))
    np.save(tmp_path / "a.npy", array)
    ours = innerspace.Memory("4MiB").open_npy(tmp_path / "a.npy")
    for name in [False, None]:
        lazily = dask_array.from_array(ours, chunks=(200, 500), name=name)
        np.testing.assert_allclose(
            (lazily * 2).sum(axis=0).compute(scheduler="threads"), array.sum(axis=0) * 2
        )
        np.testing.assert_array_equal(lazily[::7, 3].compute(scheduler="threads"), array[::7, 3])


def test_zarr(tmp_path):
    dask_array = pytest.importorskip("dask.array")
    zarr = pytest.importorskip("zarr", minversion="3")
    array = np.random.default_rng(4).random((2000, 500))
    np.save(tmp_path / "a.npy", array)
    memory = innerspace.Memory("4MiB")
    ours = memory.open_npy(tmp_path / "a.npy")
    stored = zarr.create_array(str(tmp_path / "z.zarr"), shape=ours.shape, chunks=(250, 500), dtype=ours.dtype)
    for start in range(0, 2000, 250):
        stored[start : start + 250] = ours[start : start + 250]
    np.testing.assert_array_equal(stored[:], array)
    target = memory.array(tmp_path / "back.bin", "f8", ours.shape, "w+")
    dask_array.store(dask_array.from_array(stored), target, lock=False, scheduler="threads")
    np.testing.assert_array_equal(np.asarray(target[1500:]), array[1500:])
