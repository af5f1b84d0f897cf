"""End-to-end encryption."""
