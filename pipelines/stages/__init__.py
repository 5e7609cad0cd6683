"""One file a stage: it asks sites, calls the rooms, writes artifacts; it holds no science and sees no patient."""
