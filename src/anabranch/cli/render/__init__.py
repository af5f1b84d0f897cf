"""Answers and figures as text."""
