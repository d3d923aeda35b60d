"""The commands of the documentation, run as written on real nodes; and the links and paths that documents name.

A block behind a line ``<!-- run -->`` or ``<!-- spark -->`` is run.  Blocks of the start page run in order on a cluster of their own, so do
those of each guide; those of all guides run once more one after the other, in one folder.  Only ports differ from what is written: the
cluster file is the shipped one with free ports, found by ``DLEDGER_CONFIG``, and ``127.0.0.1:9876`` in Python is its first name server.
``scripts/test docs`` runs them with the project installed from its wheel.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from broker.process.data_dir_lock import holder_pid
from dledger_cli.local.ports import free_ports
from tests import needs

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^<!-- (run|spark) -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BOOTSTRAP = "127.0.0.1:9876"
# What blocks name: of the cluster that the guide of security makes, and where the guide of monitoring finds metrics.
ANY_BLOCK = re.compile(r"^<!-- (run|spark|under load) -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MENU = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
MONITORED = ("127.0.0.1:9911", "127.0.0.1:9912", "127.0.0.1:9913")
WORDS = 63_690
MOVE = (DOCS / "guides" / "operate" / "move.md").read_text(encoding="utf-8")
LOCAL = sorted(set(re.findall(r"127\.0\.0\.1:10\d+", MOVE)) | {"127.0.0.1:10951"})
NAMED = ("127.0.0.1:20911", "127.0.0.1:20912", "127.0.0.1:20913", *LOCAL, *MONITORED)


def blocks(file: Path) -> list[tuple[str, str, str]]:
    """(run or spark, language, text) of every block of a page that is to be run."""
    return BLOCK.findall(file.read_text(encoding="utf-8"))


def local_config(folder: Path) -> tuple[Path, str]:
    """The shipped cluster file with free ports, and its first name server's address."""
    text = (ROOT / "cluster-configs" / "local-3.yaml").read_text(encoding="utf-8")
    addresses = sorted(set(re.findall(r"127\.0\.0\.1:\d+", text)))
    replaced = dict(zip(addresses, (f"127.0.0.1:{port}" for port in free_ports(len(addresses))), strict=True))
    file = folder / "cluster.yaml"
    file.write_text(re.sub(r"127\.0\.0\.1:\d+", lambda found: replaced[found.group()], text), encoding="utf-8")
    return file, replaced[BOOTSTRAP]


def shipped(folder: Path, name: str, known: Mapping[str, str]) -> None:
    """A cluster file that a guide starts, where the guide says, with free ports; ``known``: those that the guide names itself."""
    text = (ROOT / "cluster-configs" / name).read_text(encoding="utf-8")
    addresses = sorted(set(re.findall(r"127\.0\.0\.1:\d+", text)) - set(known))
    replaced = {**dict(zip(addresses, (f"127.0.0.1:{port}" for port in free_ports(len(addresses))), strict=True)), **known}
    file = folder / "cluster-configs" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(re.sub(r"127\.0\.0\.1:\d+", lambda found: replaced[found.group()], text), encoding="utf-8")


def local_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a reader's shell in ``folder``; whatever was started there is stopped at the end."""
    config, bootstrap = local_config(folder)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    made = {
        **os.environ,
        "PATH": path,
        "DLEDGER_CONFIG": str(config),
        "CONFIG": str(config),
        "PYSPARK_PYTHON": sys.executable,
        "BOOTSTRAP": bootstrap,
    }
    made |= {address: f"127.0.0.1:{port}" for address, port in zip(NAMED, free_ports(len(NAMED)), strict=True)}
    yield made
    for data in ("data", "two", "monitored", "shop/data"):
        subprocess.run(["dledger", "down", "--kill", "--data", data], cwd=folder, env=made, check=False, capture_output=True, timeout=240)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    yield from local_cluster(tmp_path)


def need_what_is_run(*pages: Path) -> None:
    """Skip the test where a command of these pages is missing."""
    for kind, _, text in (block for page in pages for block in blocks(page)):
        if kind == "spark":
            needs.java()
        for command in ("curl", "rsync"):
            if re.search(rf"^{command} ", text, re.MULTILINE):
                needs.program(command)


def run_block(language: str, text: str, folder: Path, environment: dict[str, str]) -> str:
    for address in NAMED:
        text = text.replace(address, environment[address])
    if language == "sh":
        command = ["bash", "-euo", "pipefail", "-c", text]
    else:
        command = [sys.executable, "-c", text.replace(BOOTSTRAP, environment["BOOTSTRAP"])]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{text}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.docs
@pytest.mark.timeout(2400)
def test_start_here_runs_as_written(tmp_path: Path, environment: dict[str, str]) -> None:
    """Every block of docs/tutorial.md in order; their outputs show what the page says."""
    need_what_is_run(DOCS / "tutorial.md")
    outputs = [run_block(language, text, tmp_path, environment) for _, language, text in blocks(DOCS / "tutorial.md")]
    assert len(outputs) == 8
    assert "3 of 3 nodes up" in outputs[0]
    assert '"body": "order ' in outputs[1]
    assert "SendStatus.SEND_OK" in outputs[3]
    assert "b'42 EUR'" in outputs[3]
    assert "are equal over" in outputs[5]
    assert "created" in outputs[6]


def begin(folder: Path, environment: dict[str, str]) -> None:
    """A running cluster with the topics that the start page leaves behind, and the cluster files that guides name."""
    shipped(folder, "two-groups.yaml", {})
    shipped(folder, "local-monitored.yaml", {address: environment[address] for address in MONITORED})
    run_block("sh", f"dledger up --config {environment['CONFIG']} && dledger topic create orders --queues 4", folder, environment)
    run_block("sh", "seq 1 20 | dledger produce orders --tag paid", folder, environment)
    for topic in ("invoices", "report"):
        run_block("sh", f"dledger topic create {topic} --queues 4", folder, environment)


# What guides/deploy shows is for hosts of one's own: tests/deploy runs it on some.
GUIDES = [file for part in ("applications", "operate") for file in sorted(DOCS.glob(f"guides/{part}/*.md")) if blocks(file)]


@pytest.mark.docs
@pytest.mark.timeout(900)
@pytest.mark.parametrize("guide", GUIDES, ids=lambda file: file.relative_to(DOCS / "guides").with_suffix("").as_posix())
def test_the_guides_run_as_written(guide: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    need_what_is_run(guide)
    begin(tmp_path, environment)
    for _, language, text in blocks(guide):
        run_block(language, text, tmp_path, environment)


@pytest.mark.docs
@pytest.mark.timeout(2400)
def test_the_guides_run_one_after_the_other_in_one_folder(tmp_path: Path, environment: dict[str, str]) -> None:
    """In the order of the menu, by the cluster file of the data folder: what a page leaves behind is what the next one finds."""
    environment = {name: value for name, value in environment.items() if name != "DLEDGER_CONFIG"}
    for command in ("curl", "rsync"):
        needs.program(command)
    begin(tmp_path, environment)
    pages = [DOCS / name for name in MENU if name.startswith(("guides/applications/", "guides/operate/"))]
    assert {page for page in pages if blocks(page)} == set(GUIDES)
    comments = comments_of(tmp_path)
    for page in pages:
        for kind, language, text in ANY_BLOCK.findall(page.read_text(encoding="utf-8")):
            if kind != "spark":
                run_block(language, text, tmp_path, environment)
        assert comments_of(tmp_path) == comments, page.name
    run_block("sh", "dledger down", tmp_path, environment)
    assert not [lock for lock in tmp_path.glob("data/*/lock") if holder_pid(str(lock.parent))]


def comments_of(folder: Path) -> list[str]:
    lines = (folder / "data" / "cluster.yaml").read_text(encoding="utf-8").splitlines()
    return [line.partition("#")[2] for line in lines if "#" in line]


def test_every_guide_for_applications_has_blocks_that_run() -> None:
    applications = {file.stem for file in GUIDES if file.parent.name == "applications"}
    assert applications >= {"produce", "consume", "order", "filter", "delay", "transactions", "retry", "spark"}


def assert_quickstart_passes(place: Path, folder: Path, *options: str) -> str:
    command = [str(place / "scripts" / "quickstart"), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "PASS: nothing acknowledged was lost, duplicated, changed or reordered" in done.stdout
    assert re.search("^lost +0$", done.stdout, re.MULTILINE)
    return done.stdout


@pytest.mark.docs
@pytest.mark.timeout(1200)
def test_the_quickstart_passes_on_its_own_sample(tmp_path: Path) -> None:
    assert "Spark" not in assert_quickstart_passes(ROOT, tmp_path)


@pytest.mark.docs
@pytest.mark.timeout(1200)
def test_the_quickstart_passes_with_spark_on_lines_with_crlf_in_a_folder_with_spaces(tmp_path: Path) -> None:
    lines = tmp_path / "input.log"
    lines.write_bytes(b"".join(b"Jan %d sshd[%d]: line\r\n" % (n % 28 + 1, n) for n in range(300)))
    needs.java()
    spaced = tmp_path / "a folder with spaces"
    spaced.symlink_to(ROOT)
    shown = assert_quickstart_passes(spaced, tmp_path, "--spark", "--input", str(lines))
    assert re.search("^rows Spark read +300 from n", shown, re.MULTILINE)


PAGES = [*sorted(DOCS.glob("**/*.md")), ROOT / "README.md"]


def anchors(file: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs and GitHub make them."""
    headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()) for heading in headings}


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(file: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if not target.startswith("http"):
            path, _, anchor = target.partition("#")
            linked = file.parent / path if path else file
            assert linked.exists(), f"{file.name} links to {target}"
            assert not anchor or anchor in anchors(linked), f"{file.name} links to {target}"


def test_every_page_is_in_the_menu_of_the_site() -> None:
    """scripts/docs refuses a page that is not; this one is quicker."""
    assert set(MENU) == {file.relative_to(DOCS).as_posix() for file in DOCS.glob("**/*.md")}


def test_documents_give_users_their_passwords_by_the_right_option() -> None:
    """--password-file is an option of every command, for who runs it: a block that no test runs would not show the mistake."""
    for file in (page for page in PAGES if page.name != "cli.md"):  # on a terminal the command asks
        for line in re.findall(r"^ *dledger user (?:create|update) .*$", file.read_text(encoding="utf-8"), re.MULTILINE):
            assert "--new-password-file" in line or "--no-password" in line, f"{file.name}: {line.strip()}"


def test_documents_have_no_loop_without_a_bound() -> None:
    """A loop until a command succeeds never ends when it cannot: commands that may have to wait have --wait or --timeout."""
    for file in PAGES:
        for line in re.findall(r"^.*\b(?:until|while) [^\n]*(?:;|\n)\s*do\b.*$", file.read_text(encoding="utf-8"), re.MULTILINE):
            assert re.search(r"\btimeout \d", line) or "while read" in line, f"{file.name}: {line.strip()}"


def test_paths_that_documents_name_exist() -> None:
    for file in PAGES:
        for path in re.findall(r"`((?:scripts|docs|tests|benchmarks|cluster-configs|\.ci)/[\w./-]+)`", file.read_text(encoding="utf-8")):
            assert (ROOT / path).exists(), f"{file.name}: {path}"


def test_pages_that_people_write_have_no_more_words_than_the_budget() -> None:
    """Decision records and generated pages are not counted.  Longer pages take words from others that repeat something."""
    generated = {DOCS / "reference" / f"{name}.md" for name in ("cli", "client-metrics", "errors", "events", "metrics")}
    written = [page for page in DOCS.glob("**/*.md") if page not in generated and not {"adr", "api"} & set(page.parts)]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in written) <= WORDS
