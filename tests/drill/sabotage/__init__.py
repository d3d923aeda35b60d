"""Builds with one broken promise each, which a drill has to find: ``python -m tests.drill.sabotage NAME node ...`` is ``dledger node ...``.

The product has no switch for them: the process changes its own code before the node starts, as the simulator's mutations do.
"""
