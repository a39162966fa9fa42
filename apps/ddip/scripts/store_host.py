"""Hosts the c10d store of one `ddip run`, on a loopback listener that `ddip run` bound: torch's own would listen on every interface."""

import os
import socket
import sys

LISTENER, LIFE = 3, 4  # the bound socket; a pipe that ends with `ddip run`

try:
    from torch.distributed import TCPStore
except ImportError as error:
    sys.exit(str(error))

port = socket.socket(fileno=os.dup(LISTENER)).getsockname()[1]
store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=LISTENER)
os.read(LIFE, 1)
os._exit(0)
