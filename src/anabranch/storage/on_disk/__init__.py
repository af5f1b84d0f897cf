"""`LogStore` on files: one write-ahead log for all ledgers of a broker, its recovery, its cache, its space."""
