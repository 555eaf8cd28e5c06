"""Wilson's interval, by which every measured share is reported."""

from __future__ import annotations

import math

Z_95 = 1.959964
"""Standard deviations that hold 95% of a normal distribution."""


def wilson(right: float, n: float, *, z: float = Z_95) -> tuple[float, float]:
    """Wilson's interval for a share of `right` in `n`. `right` may be a fraction: a mean of several noise seeds."""
    if n == 0:
        return 0.0, 1.0
    share, z2 = right / n, z * z
    middle = share + z2 / (2 * n)
    half = z * math.sqrt(max(0.0, share * (1 - share)) / n + z2 / (4 * n * n))
    scale = 1 + z2 / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
