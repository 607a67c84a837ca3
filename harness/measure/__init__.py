"""Clock, memory ledger, environment, devices and the witness. Knows no plan being judged."""
