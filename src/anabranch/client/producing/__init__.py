"""The way from an application's message to its receipt."""
