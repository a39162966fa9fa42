"""Names of schedules, as a ledger has them."""

SYNCHRONOUS = ("seq", "gpipe", "1f1b", "interleaved", "zb1", "zbv")  # no weights are stale
ASYNCHRONOUS = ("async_1f1b", "virtual_async", "2bw", "paci")
SCHEDULES = (*SYNCHRONOUS, *ASYNCHRONOUS)
