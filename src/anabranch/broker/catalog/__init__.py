"""What exists besides messages: tenants, clusters, namespaces, partitioned topics, schemas, and owners of topics."""
