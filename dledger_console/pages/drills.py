"""Drills: the reports that are kept in a folder of the console's machine.

A report is shown without scripts and without the console's cookie in its reach, whatever its file has in it.  A file that is downloaded has
its scripts, which zoom and filter.
"""

from __future__ import annotations

import asyncio

from nicegui import app, ui
from starlette.responses import PlainTextResponse, Response

from dledger_console.data.reports import list_reports, read_report
from dledger_console.layout.tables import BoundedTable, Column, Link
from dledger_console.layout.view import View, console_page
from dledger_console.layout.words import clock, size
from dledger_console.settings import ConsoleSettings

REPORTS = (
    Column("title", "Report"),
    Column("at", "Written"),
    Column("size", "Size", number=True),
    Column("file", "File"),
)
POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; frame-ancestors 'none'"
REFRESH_S = 5.0


@console_page("/drills", "Drills")
async def drills(view: View) -> None:
    """One row a report."""
    folder = view.settings.reports
    ui.label(f"HTML reports in {folder} on the console's machine, newest first.").classes("muted")
    table = BoundedTable(REPORTS, key="key", search=True, empty="no drill has left a report here", label="Reports of drills")

    async def refresh() -> None:
        found = await asyncio.to_thread(list_reports, folder)
        table.set_rows(
            [
                {
                    "key": each.name,
                    "title": Link.to(each.title, "/report", name=each.name),
                    "at": clock(each.at_ms),
                    "size": size(each.size_bytes),
                    "file": Link.to("download", "/report", name=each.name, download="true"),
                }
                for each in found
            ]
        )

    await view.every(REFRESH_S, refresh)


def register(settings: ConsoleSettings) -> None:
    """Serve /report, which is no page of the console's own."""

    async def report(name: str, download: bool = False) -> Response:
        body = await asyncio.to_thread(read_report, settings.reports, name)
        if body is None:
            return PlainTextResponse("no such report\n", 404)
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
        if download:  # the name is plain: no quotes, no spaces
            headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return Response(body, media_type="text/html", headers=headers)

    app.add_api_route("/report", report, methods=["GET"], include_in_schema=False)
