"""A CUDA program that does nothing but begin: what happens to it happens to every new one.

``python -m gpushared.sharing.canary`` loads the driver's CUDA library and initialises it, which connects to
the MPS server that CUDA_MPS_PIPE_DIRECTORY leads to, and prints the result (a number of ``CUresult``). It
takes no GPU memory. A server that is wedged keeps it waiting, and its caller sees that.
"""

from __future__ import annotations

import ctypes
import sys

LIBRARY = "libcuda.so.1"
NO_LIBRARY = 3
"""The exit status where CUDA's library cannot be loaded."""


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
