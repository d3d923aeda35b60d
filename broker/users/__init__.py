"""Users and rules of a cluster: changed at the master of the first replica group, watched and copied by all others."""
