"""Arrays from bytes to tens of megabytes, sorting, grouping, joining and strings."""

import numpy as np
import pandas as pd

random = np.random.default_rng(1)
rows = 200_000
frame = pd.DataFrame({"key": random.integers(0, 500, rows), "value": random.integers(0, 10**6, rows)})
for size in (10, 10_000, 3_000_000):
    print(np.sort(random.integers(0, size, size)).sum(), np.cumsum(np.ones(size))[-1])
print(frame.groupby("key").value.agg(["sum", "max"]).sum().tolist())
print(frame.merge(frame.head(50), on="key").shape)
print(frame.key.astype(str).str.zfill(9).value_counts().sort_index().head(3).to_dict())
