"""The machines of a simulation: virtual time, a network, disks and a metadata store that misbehave as the seed says."""
