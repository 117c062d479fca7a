"""What the tests share."""

import numpy as np
import pytest

import innerspace


@pytest.fixture
def memory():
    return innerspace.Memory("16MiB")


@pytest.fixture
def data():
    """A megabyte without a pattern."""
    return np.random.default_rng(1).bytes(1 << 20)


@pytest.fixture
def path(tmp_path, data):
    path = tmp_path / "data.bin"
    path.write_bytes(data)
    return path
