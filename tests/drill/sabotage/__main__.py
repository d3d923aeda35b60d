"""``python -m tests.drill.sabotage NAME COMMAND ...``: runs a command of ``dledger`` with the promise NAME broken."""

from __future__ import annotations

import sys

import pytest

from dledger_cli.app import main
from tests.drill.sabotage.promises import SABOTAGES

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in SABOTAGES:
        sys.exit(f"usage: python -m tests.drill.sabotage {{{','.join(SABOTAGES)}}} COMMAND ...")
    SABOTAGES[sys.argv.pop(1)](pytest.MonkeyPatch())
    main()
