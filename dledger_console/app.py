"""The console as one ASGI application, and the process that serves it.

The page library keeps its application in its module, so a process has one console.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from importlib import resources
from typing import TYPE_CHECKING, Any

from dledger_console.settings import ConsoleSettings
from dledger_console.web.gate import Gate

if TYPE_CHECKING:
    from fastapi import FastAPI

MAX_SOCKET_MESSAGE = 1 << 20  # of a browser


def make_app(settings: ConsoleSettings) -> Any:
    """The ASGI application of a console."""
    # Read when the library is imported: it would look for a folder of its own in the current one.
    os.environ.setdefault("NICEGUI_STORAGE_PATH", os.path.join(tempfile.gettempdir(), "dledger-console-unused"))
    from fastapi import FastAPI
    from starlette.middleware.gzip import GZipMiddleware

    from dledger_console.web import login
    from dledger_console.web.guard import Guard

    gate = Gate(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(gate.sessions.expire_regularly(), name="console-sessions")
        yield
        task.cancel()
        await gate.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.gate = gate
    login.register(app, settings, gate)
    _add_pages(app, settings)
    app.add_middleware(Guard, settings=settings, gate=gate)
    app.add_middleware(GZipMiddleware, minimum_size=1_000)
    return app


def _add_pages(app: FastAPI, settings: ConsoleSettings) -> None:
    """Static files, the pages and their sockets."""
    from nicegui import core, ui
    from starlette.staticfiles import StaticFiles

    from dledger_console import pages
    from dledger_console.layout.view import register_pages
    from dledger_console.pages import drills
    from dledger_console.web.sockets import protect_sockets

    static = resources.files("dledger_console") / "static"
    app.mount("/static", StaticFiles(directory=str(static)), name="static")
    pages.load()
    register_pages(settings)
    drills.register(settings)
    ui.add_head_html('<link rel="stylesheet" href="/static/console.css">', shared=True)
    protect_sockets()
    core.app.config.socket_io_js_transports = ["websocket"]
    ui.run_with(
        app,
        title="dledger",
        dark=None,
        language="en-US",
        tailwind=False,
        favicon=str(static / "favicon.svg"),
        reconnect_timeout=10.0,
        gzip_middleware_factory=None,  # outermost, below
        show_welcome_message=False,
    )


def serve(settings: ConsoleSettings, *, ends_with_stdin: bool = False) -> None:
    """Serve the console until a signal ends the process.  AddressInUseError when it cannot listen, ConfigError for a certificate of no
    use."""
    import uvicorn

    from dledger_console.web import server

    logging.getLogger("dledger_console").setLevel(logging.INFO)  # who logged in, and what actions did
    config = uvicorn.Config(
        make_app(settings),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws_max_size=MAX_SOCKET_MESSAGE,
        timeout_graceful_shutdown=2,
    )
    made = server.ConsoleServer(config, f"{settings.host}:{settings.port}", settings.tls)
    asyncio.run(server.serve(made, ends_with_stdin=ends_with_stdin))
