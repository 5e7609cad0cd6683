"""Tables in: CSV files and features."""
