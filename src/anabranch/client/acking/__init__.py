"""Acknowledgements: which ones wait, how far an application has come, how they are sent."""
