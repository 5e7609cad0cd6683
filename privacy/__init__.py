"""What may leave a hospital and what it costs: access to patients, events, gate, ledger, policy."""
