import datetime
import torch._C._distributed_c10d
import torch.distributed.distributed_c10d
import typing

class C10dBackend(torch._C._distributed_c10d.Backend):
    def __init__(self, store: torch.distributed.distributed_c10d.Store, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex, timeout: datetime.timedelta) -> None: ...
    def describe(self) -> str: ...
    @property
    def abort_socket(self) -> int: ...
