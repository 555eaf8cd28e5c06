"""Adam (Kingma and Ba 2015) over a few numpy arrays, for the routers that are fitted here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Adam:
    """Holds the parameters and the moments of their gradients; `step` returns new arrays."""

    def __init__(self, parameters: Sequence[Array], *, learning_rate: float) -> None:
        self._parameters = tuple(parameters)
        self._rate = learning_rate
        self._mean = [np.zeros_like(p) for p in parameters]
        self._square = [np.zeros_like(p) for p in parameters]
        self._taken = 0

    def step(self, gradients: Sequence[Array]) -> tuple[Array, ...]:
        """Down the gradients of a loss."""
        self._taken += 1
        first, second = BETAS
        found = []
        for i, (parameter, gradient) in enumerate(zip(self._parameters, gradients, strict=True)):
            self._mean[i] = first * self._mean[i] + (1 - first) * gradient
            self._square[i] = second * self._square[i] + (1 - second) * gradient**2
            mean = self._mean[i] / (1 - first**self._taken)
            square = self._square[i] / (1 - second**self._taken)
            found.append(parameter - self._rate * mean / (np.sqrt(square) + EPSILON))
        self._parameters = tuple(found)
        return self._parameters
