"""REST of settings: of namespaces and of topics, from tables."""
