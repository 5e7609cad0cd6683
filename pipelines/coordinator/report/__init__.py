"""The contents of the coordinator's page, from sites' replies only."""
