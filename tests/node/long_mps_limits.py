"""The daemon, with time for MPS also where a container is to end at once.

On a busy machine half a second is over before a control daemon has had its turn. What comes before what does
not depend on that time; that it is kept to is looked at by a daemon without this.
"""

from __future__ import annotations

from gpushared.node.main import main
from gpushared.node.runtime import mps_detach as ends
from gpushared.sharing import server_watch as clients

PATIENCE_SECONDS = 20.0

if __name__ == "__main__":
    ends.AT_ONCE_SECONDS = PATIENCE_SECONDS
    clients._LET_GO_SECONDS = PATIENCE_SECONDS
    main()
