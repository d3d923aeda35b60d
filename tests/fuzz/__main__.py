"""Searches for inputs that a decoder does not stand, guided by coverage (atheris, which is libFuzzer): see ``scripts/fuzz --help``.

Each target runs in a process of its own, since libFuzzer ends its process.  A finding is written to ``tests/fuzz/corpus/``, to the folder
of its target, where ``test_targets.py`` takes it up.  Inputs that reach new code are kept under ``.fuzz/`` and are not committed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
KEPT = ROOT / ".fuzz"
PACKAGES = ["dledger", "dledger_wire", "store", "broker", "dledger_client", "dledger_cli", "pyspark_dledger", "scramp"]
RSS_LIMIT_MB = 1024
SLOWEST_S = 20
TRACED = 50  # one input of so many is measured, which costs several times as much


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Fuzz the decoders of everything that comes from outside.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all, one after the other")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="0: drawn and printed")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    parser.add_argument("--replay", metavar="FILE", help="run one input of the one target named, with its bounds")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.in_this_process:
        _search(given.targets[0], given.seconds, given.seed)
        return
    from tests.fuzz.targets import ALL

    unknown = [name for name in given.targets if name not in ALL]
    if unknown:
        parser.error(f"unknown target {unknown[0]}; expected some of {', '.join(ALL)}")
    if given.list:
        print("\n".join(ALL))
    elif given.replay:
        ALL[given.targets[0]].take_bounded(Path(given.replay).read_bytes())
    else:
        sys.exit(_run_all(given.targets or list(ALL), given.seconds, given.seed))


def _run_all(names: list[str], seconds: int, seed: int) -> int:
    found = []
    for name in names:
        number = seed or random.randrange(1, 1 << 31)
        print(f"== {name}: {seconds} s, --seed {number}", flush=True)
        own = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(seconds), "--seed", str(number), "--in-this-process"]
        if subprocess.run(own, cwd=ROOT, check=False).returncode:
            found.append(name)
    print(f"findings in {', '.join(found)}: see tests/fuzz/corpus" if found else "no findings", flush=True)
    return 1 if found else 0


def _search(name: str, seconds: int, seed: int) -> None:
    try:
        import atheris  # type: ignore[import-untyped]
    except ImportError:
        sys.exit("atheris is missing: .venv/bin/python -m pip install '.[fuzz]'")
    with atheris.instrument_imports(include=PACKAGES):
        from tests.fuzz.targets import ALL
    target, kept = ALL[name], KEPT / name
    kept.mkdir(parents=True, exist_ok=True)
    for data in (*target.seeds, *(file.read_bytes() for file in (CORPUS / name).glob("*"))):
        _write(kept, data)
    count = 0

    def one(data: bytes) -> None:
        nonlocal count
        count += 1
        try:
            (target.take if count % TRACED else target.take_bounded)(data)
        except BaseException:
            traceback.print_exc()
            print(f"FINDING {_write(CORPUS / name, data)}", file=sys.stderr, flush=True)
            os._exit(1)

    with tempfile.NamedTemporaryFile("w", suffix=".dict", delete=False) as words:
        words.writelines('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.words if word)
    artifacts = CORPUS / name
    options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-rss_limit_mb={RSS_LIMIT_MB}", f"-timeout={SLOWEST_S}"]
    options += [f"-artifact_prefix={artifacts}/", f"-dict={words.name}", "-len_control=20", "-max_len=20000", "-print_final_stats=1"]
    artifacts.mkdir(parents=True, exist_ok=True)
    atheris.Setup([sys.argv[0], *options, str(kept)], one)
    atheris.Fuzz()


def _write(folder: Path, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:12]
    path.write_bytes(data)
    return path


if __name__ == "__main__":
    main()
