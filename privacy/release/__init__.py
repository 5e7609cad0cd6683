"""What may leave a hospital: policy, gate, ledger and privacy statement."""
