"""External sites: hospitals outside the federation that get exported models and adapt them to their own images."""
