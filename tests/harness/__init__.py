"""Test support that starts real processes and speaks the raw protocol."""
