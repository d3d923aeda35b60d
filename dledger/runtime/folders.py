"""Names of the folders of a replica's data directory that more than one part works with."""

LOG_FOLDER = "commitlog"
COPY_FOLDER = "copy"
