"""Studies: commands that train many times, compare, and say what they saw (docs/study.md)."""
