"""How a REST request is served: connection, caller, route, rights, body, answer, description."""
