"""Options of the source and the sink: names, parsing, units, and where a read starts and ends."""
