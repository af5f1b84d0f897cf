"""Anabranch: messaging whose topics scale themselves."""

__version__ = "0.1.0"
