"""How the larger parts of a broker are put together; `broker.broker` makes the whole of them."""
