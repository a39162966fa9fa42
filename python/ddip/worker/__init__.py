"""What runs in a worker process: cells on the main thread, everything else in the native control thread."""
