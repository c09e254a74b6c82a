"""Start CUDA and do nothing else: the fate of this program is the fate of every new CUDA program.

``python -m gpushared.sharing.canary`` loads the driver's CUDA library and initialises it, which connects to
the MPS server that CUDA_MPS_PIPE_DIRECTORY leads to, and prints the result (a number of ``CUresult``). The
program takes no GPU memory. A wedged server keeps the program waiting, and the caller sees that.
"""

from __future__ import annotations

import ctypes
import sys

LIBRARY = "libcuda.so.1"
NO_LIBRARY = 3
"""The program exits with this status if CUDA's library cannot be loaded."""


def main() -> int:
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return NO_LIBRARY
    sys.stdout.write(f"{cuda.cuInit(0)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
