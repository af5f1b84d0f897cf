"""The topics that a broker has open: how they are opened and created, and the periodic work on all of them."""
