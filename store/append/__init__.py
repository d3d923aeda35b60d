"""From a produce request to committed records: stamping, copies, dispatch."""
