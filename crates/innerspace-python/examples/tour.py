# %% [markdown]
# # Arrays larger than memory, under a limit
#
# Each part between the lines `# %%` is a cell: open this file as a notebook in VS Code, Spyder or PyCharm,
# with `jupytext --to ipynb`, or run it as a program. It makes its files in a new folder.

# %%
import tempfile
from pathlib import Path

import numpy as np

import innerspace

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# A memory has a limit, which nothing passes. All that is opened in it shares the limit.

# %%
memory = innerspace.Memory("8MiB")
print(memory)

# %% [markdown]
# A file of 64 MiB, written through the memory: eight times the limit. `w+` makes the file as
# `numpy.memmap` does.

# %%
table = memory.array(folder / "table.bin", "float32", (16_384, 1024), "w+")
for rows, _ in table.blocks():
    numbers = np.arange(16_384, dtype=np.float32)[rows[0]]
    table[rows] = numbers[:, None] + np.arange(1024, dtype=np.float32)[rows[1]]
table.flush()
table

# %% [markdown]
# Indexing is numpy's. Slices read nothing; fancy and boolean indices copy what they name.

# %%
part = table[::64, ::8]
print(part)
print(table[[7, 3, 16_000], 5].tolist())

# %% [markdown]
# Reductions go block by block, whatever the size of the array.

# %%
print(table[:, 5].mean(dtype="float64"), table.max())

# %% [markdown]
# What would not fit is refused before anything is read.

# %%
try:
    np.asarray(table)
except innerspace.LimitError as error:
    print("LimitError:", error)

# %% [markdown]
# A file that is cut short under the array is an exception. With `numpy.memmap` it is SIGBUS, the end of
# the process.

# %%
with open(folder / "table.bin", "r+b") as other_program:
    other_program.truncate(4096)
memory.open(folder / "table.bin", "r+").invalidate()
try:
    table[16_000, 0]
except innerspace.FileError as error:
    print("FileError:", error)

# %% [markdown]
# Where the limit goes: a dict, a text, and in a notebook a bar.

# %%
stats = memory.stats()
print(f"peak {stats['peak'] / (1 << 20):.1f} of {stats['limit'] / (1 << 20):.0f} MiB")
stats
