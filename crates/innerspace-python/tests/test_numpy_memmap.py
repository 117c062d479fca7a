"""numpy's own tests of `memmap`, as its wheel has them, run against `innerspace.Array`."""

import importlib
import importlib.util
import inspect

import numpy as np
import pytest

import innerspace
from innerspace import _opening

MEMORY = innerspace.Memory("16MiB")

# Why a test of numpy's cannot pass. docs/coming-from/numpy-memmap.md has the same reasons.
REFUSED = {
    "test_del": "numpy.testing.assert_equal compares an ndarray with a number, and an Array is none",
    "test_slicing_keeps_references": "an Array has no mmap to look at (`_mmap`)",
    "test_view": "numpy.asarray copies an Array to memory of its own, so `base` is another array",
    "test_memmap_subclass": "reductions and fancy indexing return numpy's arrays, also in a subclass",
}


class Memmap(innerspace.Array):
    """An Array that is made as `numpy.memmap` is."""

    def __init__(self, filename, dtype=np.uint8, mode="r+", offset=0, shape=None, order="C"):
        parts = _opening.open_array(MEMORY, filename, dtype, shape, mode, offset, order, None, None)
        super().__init__(*parts)


def load():
    """The module with numpy's tests, in which `memmap` is an Array."""
    name = next(
        name
        for name in ("numpy._core.tests.test_memmap", "numpy.core.tests.test_memmap")
        if importlib.util.find_spec(name.rpartition(".")[0].rpartition(".")[0])
    )
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.memmap = Memmap
    return module


MODULE = load()
if "gh-27723" not in inspect.getsource(MODULE):
    REFUSED["test_empty_array"] = "this numpy makes no empty file; an Array does, as later ones do"
NAMES = [name for name in dir(MODULE.TestMemmap) if name.startswith("test_")]


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def run(name, tmp_path):
    tests = MODULE.TestMemmap()
    tests.setup_method()
    try:
        method = getattr(tests, name)
        takes_folder = "tmp_path" in method.__code__.co_varnames[: method.__code__.co_argcount]
        method(tmp_path) if takes_folder else method()
    finally:
        tests.teardown_method()


def test_of_numpy(name, tmp_path):
    if name not in REFUSED:
        run(name, tmp_path)
        return
    with pytest.raises((AssertionError, AttributeError, pytest.fail.Exception)):
        run(name, tmp_path)


def test_a_view_that_is_gone_takes_nothing_along(memory, tmp_path):
    # What test_del checks, by the comparison that takes all that can become an array.
    base = memory.array(tmp_path / "new", "f4", (3, 4), "w+")
    base[0] = 5
    view = base[0:1]
    np.testing.assert_array_equal(view[0], 5)
    del view
    np.testing.assert_array_equal(base[0], 5)
    base[0] = 6
    np.testing.assert_array_equal(base[0], 6)


def test_each_reason_is_for_a_test_that_there_is():
    assert len(NAMES) >= 17 and set(REFUSED) <= set(NAMES)


def test_a_file_object_without_a_name(memory):
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(b"\x05\x00\x00\x00")
        array = memory.array(file, "<u4", (1000,), "r+")
        assert array.filename is None and "without a name" in repr(array)
        assert array[0] == 5 and array[999] == 0
        array[999] = 7
        array.flush()
        file.seek(3996)
        assert file.read() == b"\x07\x00\x00\x00"
        with pytest.raises(ValueError, match="not a whole number of"):
            memory.array(file, "V7")
        with pytest.raises(ValueError, match="^a file without a name has 4000 bytes"):
            memory.array(file, offset=5000)
    with pytest.raises(ValueError, match="closed file"):
        memory.array(file)


def test_a_file_object_for_reading_is_not_written(memory, path):
    with open(path, "rb") as file:
        assert memory.array(file, mode="r").filename == str(path)
        with pytest.raises(ValueError, match="open for reading only"):
            memory.array(file, mode="r+")


def test_flags(memory, path):
    array = memory.array(path, "u1", (4, 8))
    assert not array.flags.writeable and array.flags.c_contiguous and not array.flags["OWNDATA"]
    assert array.T.flags.f_contiguous and not array.T.flags.c_contiguous
    assert "C_CONTIGUOUS : True" in repr(array.flags)
