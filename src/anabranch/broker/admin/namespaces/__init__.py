"""REST of namespaces, their bundles and their grants."""
