"""Writes the generated pages and pictures of the documentation; with --check, only compares them and exits 1 when one is stale."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import cli_page
import client_metrics_page
import errors_page
import metrics_page
import pictures

from dledger_cli.app import app

DOCS = Path(__file__).resolve().parents[3] / "docs"


def types_page() -> str:
    """One entry for each exported name, so that a new one cannot be forgotten."""
    head = "# Types\n\nMessages, results, settings and callbacks. Import them from `dledger_client` or `dledger_client.aio`.\n"
    return head + "".join(f"\n::: dledger_client.types.{name}\n" for name in importlib.import_module("dledger_client.types").__all__)


def wanted() -> dict[Path, str]:
    """Path and content of every generated file."""
    reference = DOCS / "reference"
    files = {
        reference / "cli.md": cli_page.page(app),
        reference / "client-metrics.md": client_metrics_page.page(),
        reference / "errors.md": errors_page.page(),
        reference / "metrics.md": metrics_page.page(),
        reference / "api" / "types.md": types_page(),
    }
    return files | {DOCS / "assets" / name: text for name, text in pictures.all_pictures().items()}


def main() -> int:
    stale = [path for path, text in wanted().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(DOCS.parent)} is stale; run scripts/docs generate", file=sys.stderr)
        return 1 if stale else 0
    for path, text in wanted().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"wrote {len(stale)} changed of {len(wanted())} generated files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
