"""The shell: the only room that knows files, YAML, clocks, order and the command line."""
