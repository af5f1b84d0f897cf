"""The admin REST of a broker, with Pulsar's v2 paths and JSON: tables of routes by subject."""
