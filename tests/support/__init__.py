"""Helpers of the scenarios in tests/: processes seen from outside, raw frames, clients as processes of their own."""
