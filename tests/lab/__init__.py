"""Support for the notebook tests: a terminal shell, a kernel driven by nbclient, JupyterLab in a real browser."""
