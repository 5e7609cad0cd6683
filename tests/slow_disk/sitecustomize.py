"""Python imports this at its start where this folder is on its path: every fsync of the process then takes a while.

What is being committed lies under an unfinished name for as long, so that a test can kill the process meanwhile.
"""

import os
import time

SECONDS = float(os.environ.get("CONSILIUM_TEST_FSYNC_S", "0"))
force_to_disk = os.fsync


def force_slowly(file: int) -> None:
    time.sleep(SECONDS)
    force_to_disk(file)


if SECONDS:
    os.fsync = force_slowly
