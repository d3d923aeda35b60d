"""Jobs over the log: each a function, a ``dledger spark NAME`` command and a script for spark-submit."""
