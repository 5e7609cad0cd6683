"""Images of many sites become comparable: complexity, synthesis, sampling, translation."""
