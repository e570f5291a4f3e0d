"""Kernels that run for a given time and note when: `%globaltimer` at their first and last instruction.

Only the programs beside this one import it: it needs a GPU, PyTorch and CuPy.
"""

from __future__ import annotations

import time

import cupy
import numpy as np
import torch

_SOURCE = """
#define NOTE unsigned long long a, b; \\
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(a)); \\
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(b)); } while (b - a < ns); \\
    noted[2 * slot] = a; noted[2 * slot + 1] = b;
extern "C" {
__global__ void spin(unsigned long long ns, unsigned long long* noted, int slot) { NOTE }
__global__ void ncclDevKernel_SendRecv(unsigned long long ns, unsigned long long* noted, int slot) { NOTE }
}
"""
_ROOM = 20_000


class Noting:
    """Launches such kernels on PyTorch's current stream.

    Attributes:
        owner: What was said of each launch, in order.
        ties: Host's monotonic time before and after, and the slot, of kernels that were waited for.
    """

    def __init__(self) -> None:
        module = cupy.RawModule(code=_SOURCE)
        self._kernels = [module.get_function(name) for name in ("spin", "ncclDevKernel_SendRecv")]
        self._noted = torch.zeros(2 * _ROOM, dtype=torch.int64, device="cuda")
        self._array = cupy.asarray(self._noted)
        self.owner = []
        self.ties = []
        self.launch(5)
        torch.cuda.synchronize()
        self.owner.clear()

    def launch(self, microseconds, owner=-1, *, communicates=False):
        """Launch one, and return its slot."""
        slot = len(self.owner)
        self.owner.append(owner)
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            arguments = (np.uint64(1000 * microseconds), self._array, np.int32(slot))
            self._kernels[communicates]((1,), (1,), arguments)
        return slot

    def tie(self):
        """Run the shortest, between two readings of the host's clock, a few dozen times."""
        for _ in range(50):
            torch.cuda.synchronize()
            before = time.monotonic_ns()
            slot = self.launch(0)
            torch.cuda.synchronize()
            self.ties.append((before, time.monotonic_ns(), slot))

    def noted(self):
        """Return when each began and ended, of shape (launches, 2)."""
        torch.cuda.synchronize()
        return self._noted.cpu().numpy().reshape(-1, 2)[: len(self.owner)]
