"""Commands that send requests to the admin REST."""
