"""What the coordinator's page shows, from messages only."""
