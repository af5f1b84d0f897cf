"""Several brokers on one folder of one machine: their processes are started, restarted and stopped here."""
