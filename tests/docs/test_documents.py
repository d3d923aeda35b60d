"""The README's commands, run as written on real nodes; and the links and paths that documents name.

Blocks marked ``run`` or ``spark`` run in order, in one folder, with one cluster.  Only ports differ from what is written: the cluster file
is the shipped one with free ports, found by ``DLEDGER_CONFIG``, and ``127.0.0.1:9876`` in Python stands for its first name server.
``scripts/test docs`` runs them with the project installed from its wheel.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_cli.local.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+) (run|spark)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BOOTSTRAP = "127.0.0.1:9876"


def local_config(folder: Path) -> tuple[Path, str]:
    """The shipped cluster file with free ports, and its first name server's address."""
    text = (ROOT / "cluster-configs" / "local-3.yaml").read_text(encoding="utf-8")
    addresses = sorted(set(re.findall(r"127\.0\.0\.1:\d+", text)))
    replaced = dict(zip(addresses, (f"127.0.0.1:{port}" for port in free_ports(len(addresses))), strict=True))
    file = folder / "cluster.yaml"
    file.write_text(re.sub(r"127\.0\.0\.1:\d+", lambda found: replaced[found.group()], text), encoding="utf-8")
    return file, replaced[BOOTSTRAP]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    config, bootstrap = local_config(tmp_path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    made = {**os.environ, "PATH": path, "DLEDGER_CONFIG": str(config), "PYSPARK_PYTHON": sys.executable, "BOOTSTRAP": bootstrap}
    yield made
    subprocess.run(["dledger", "down", "--kill"], cwd=tmp_path, env=made, check=False, capture_output=True, timeout=240)


def run_block(language: str, text: str, folder: Path, environment: dict[str, str]) -> str:
    if language == "sh":
        command = ["bash", "-euo", "pipefail", "-c", text]
    else:
        command = [sys.executable, "-c", text.replace(BOOTSTRAP, environment["BOOTSTRAP"])]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{text}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.docs
@pytest.mark.timeout(2400)
def test_the_readmes_blocks_run_as_written(tmp_path: Path, environment: dict[str, str]) -> None:
    blocks = BLOCK.findall(README)
    assert [kind for _, kind, _ in blocks] == ["run", "run", "run", "spark", "run", "run"]
    outputs = [run_block(language, text, tmp_path, environment) for language, _, text in blocks[:4]]
    run_block("python", first_example_of_spark(tmp_path), tmp_path, environment)
    copied = run_block("sh", "dledger consume invoices --from first --idle-exit 2", tmp_path, environment)
    assert copied.splitlines() == ["a bill that was paid"]
    outputs += [run_block(language, text, tmp_path, environment) for language, _, text in blocks[4:]]
    assert '"body": "order ' in outputs[0]
    assert "3 of 3 nodes up" in outputs[0]
    assert "SendStatus.SEND_OK" in outputs[1]
    assert "b'42 EUR'" in outputs[1]
    assert "topic no-such-topic does not exist" in outputs[2]
    assert "created" in outputs[3]
    assert "3 of 3 nodes up, quorum ok" in outputs[4]
    assert "are equal over" in outputs[5]


def first_example_of_spark(folder: Path) -> str:
    """What docs/guides/spark.md begins with, after its topics were made and one message was paid; its checkpoint goes to ``folder``."""
    block = re.search(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "guides" / "spark.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert block is not None
    before = f"""from dledger_client import Admin, Message, Producer
with Admin("{BOOTSTRAP}") as admin, Producer("{BOOTSTRAP}") as producer:
    admin.create_topic("invoices", queues=1)
    producer.send(Message("orders", b"a bill that was paid", tags="paid"))
"""
    return before + block.group(1).replace("/data/checkpoints", str(folder / "checkpoints"))


@pytest.mark.docs
@pytest.mark.timeout(2400)
def test_the_quickstart_passes_on_its_own_sample_and_on_lines_with_crlf_in_a_folder_with_spaces(tmp_path: Path) -> None:
    lines = tmp_path / "input.log"
    lines.write_bytes(b"".join(b"Jan %d sshd[%d]: line\r\n" % (n % 28 + 1, n) for n in range(300)))
    spaced = tmp_path / "a folder with spaces"
    spaced.symlink_to(ROOT)
    for place, options in ((ROOT, []), (spaced, ["--input", str(lines)])):
        command = [str(place / "scripts" / "quickstart"), *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "PASS: nothing acknowledged was lost, doubled, changed or reordered" in done.stdout
        assert "lost                    0" in done.stdout


@pytest.mark.parametrize("file", [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"], ids=lambda file: file.name)
def test_links_lead_somewhere(file: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", file.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (file.parent / target).exists(), f"{file.name} links to {target}"


def test_paths_the_readme_names_exist() -> None:
    for path in re.findall(r"`((?:scripts|docs|tests|benchmarks|cluster-configs|\.ci)/[\w./-]+)", README):
        assert (ROOT / path).exists(), path
