"""Replays the load of a cluster, recorded or synthetic, through the code of the load balancer, and sums up the outcome.
Pure."""
