"""Tables made on the host, brought to where the model is without waiting for what it still has to do.

`torch.tensor(table, device="cuda")` waits until the GPU has finished everything it was given before; meanwhile nothing
new is given to it, and afterwards it idles until something is. From pinned memory a copy is one more thing in its
queue. Torch keeps that memory until the copy is made, so a caller may forget the table at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def upload(table: np.ndarray[Any, Any], device: torch.device | str) -> torch.Tensor:
    """The table as a tensor over there. On a CPU it may be the same memory: do not write to it afterwards."""
    tensor = torch.from_numpy(table)
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
