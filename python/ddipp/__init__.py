"""Another spelling of ddip: `%load_ext ddipp` loads the same extension."""

from ddip import load_ipython_extension, unload_ipython_extension

__all__ = ["load_ipython_extension", "unload_ipython_extension"]
