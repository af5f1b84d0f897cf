"""A topic's log over its ledgers, whichever store keeps them."""
