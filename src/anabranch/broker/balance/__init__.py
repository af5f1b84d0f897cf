"""The load balancer of PIP-192 on a broker: the bundle state channel, who leads, what is reported and moved."""
