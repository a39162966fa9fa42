raise ImportError("IPython is not here, for a test")
