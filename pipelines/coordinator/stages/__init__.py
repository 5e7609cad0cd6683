"""The stages of a run, one file each: ask sites, write artifacts. No science here."""
