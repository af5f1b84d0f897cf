"""OpenTelemetry spans around producers and consumers."""
