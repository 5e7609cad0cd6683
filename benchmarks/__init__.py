"""What measures the project. Scripts run from its root, as in `python -m benchmarks.speed.engine`.

`speed` measures seconds, memory and bytes; `studies` what methods are worth to patients; `faults` what fails, and what
is lost then; `peers` the same run in other frameworks; `tables` makes the pages of results and the pictures. What was
measured is kept in `measured`.
"""
