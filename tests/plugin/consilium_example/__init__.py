"""A method, a network and a translator for consilium, as an example."""
