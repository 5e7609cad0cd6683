"""External sites: hospitals outside the federation, which get exported models and adapt them to their own images."""
