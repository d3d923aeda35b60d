"""Names of the folders of a replica's data directory that more than one part works with."""

LOG_FOLDER = "commitlog"
SNAPSHOT_FOLDER = "copy"
