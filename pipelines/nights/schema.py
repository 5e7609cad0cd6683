"""The tables of the worklist, and the number by which a worklist says that it has them."""

from __future__ import annotations

VERSION = 1
SCHEMA = """
CREATE TABLE series (
    series TEXT PRIMARY KEY, study TEXT NOT NULL, modality TEXT NOT NULL, description TEXT NOT NULL, day TEXT NOT NULL,
    accession TEXT NOT NULL, instances INTEGER, first_seen TEXT NOT NULL, last_seen TEXT NOT NULL
) STRICT;
CREATE TABLE task (
    id INTEGER PRIMARY KEY AUTOINCREMENT, series TEXT NOT NULL REFERENCES series, model TEXT NOT NULL,
    version INTEGER NOT NULL, state TEXT NOT NULL, instances INTEGER, tries INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '', detail TEXT NOT NULL DEFAULT '', made_at TEXT NOT NULL DEFAULT '',
    changed TEXT NOT NULL, files TEXT NOT NULL DEFAULT '{}', rows TEXT NOT NULL DEFAULT '[]',
    superseded INTEGER REFERENCES task, UNIQUE (series, model, version)
) STRICT;
CREATE INDEX open_tasks ON task (model, state);
CREATE TABLE result (
    uid TEXT PRIMARY KEY, task INTEGER NOT NULL REFERENCES task, kind TEXT NOT NULL, file TEXT NOT NULL,
    of TEXT NOT NULL, sop_class TEXT NOT NULL, series_uid TEXT NOT NULL, study_uid TEXT NOT NULL,
    stored TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX own_series ON result (series_uid);
CREATE TABLE odd (
    task INTEGER NOT NULL, what TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL, first_seen TEXT NOT NULL,
    last_seen TEXT NOT NULL, UNIQUE (task, what, reason)
) STRICT;
CREATE VIEW told AS SELECT task.id, series.study, task.series, task.model, task.version, task.state, task.instances,
    task.tries, task.made_at, series.accession, task.reason, task.detail, task.files, series.day
    FROM task JOIN series ON series.series = task.series;
"""
