"""The decoder and, in `residual`, the independent variable: how it aggregates depth."""
