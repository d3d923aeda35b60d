"""The ``dledger`` command: one module per command group; heavy imports stay inside the commands."""
