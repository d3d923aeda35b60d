#!/usr/bin/env bash
# wheel.sh DIR: makes what a user gets.  DIR/release holds what scripts/release builds, DIR/checkout the wheel of `pip install .`, DIR tests, documents
# and scripts, and no package of the project; DIR/.venv has all wheels installed, and beside them only what our .venv has of other people's packages.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(realpath -m "$1")
rm -rf "$work"
mkdir -p "$work/source"
copy_of() { tar -C "$root" --exclude=__pycache__ --exclude='*.egg-info' -c "${@:2}" | tar -C "$1" -x; }

"$root/scripts/release" "$work/release" > /dev/null
mapfile -t packages < <("$root/.venv/bin/python" "$root/scripts/lib/wheel_projects.py")

# Built from a copy: setuptools would leave build/ and *.egg-info behind, and take old files out of them the next time.
copy_of "$work/source" pyproject.toml README.md LICENSE "${packages[@]}"
"$root/.venv/bin/python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation --no-index -w "$work/checkout" "$work/source"
rm -rf "$work/source"

"$root/.venv/bin/python" -m venv --without-pip "$work/.venv"
"$root/.venv/bin/python" -m pip --python "$work/.venv/bin/python" install -q --disable-pip-version-check --no-deps --no-index "$work"/release/*.whl
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
# A plain path in a .pth file is searched, but .pth files there are not read: .venv's own link to the checkout has no effect.
site "$root/.venv/bin/python" > "$(site "$work/.venv/bin/python")/other-packages.pth"

mapfile -t pages < <(cd "$root" && printf '%s\n' ./*.md)
copy_of "$work" pyproject.toml mkdocs.yml "${pages[@]}" LICENSE requirements.lock benchmarks cluster-configs docs proto scripts tests .ci
printf "$(cat "$work/requirements.lock" "$work/pyproject.toml" | cksum) %s\n" run spark all > "$work/.venv/.lock-stamp" # scripts here take this .venv as it is
cd "$work"
env -u PYTHONPATH "$work/.venv/bin/python" - "$root" "$work/.venv" "${packages[@]}" << 'PYTHON'
import sys
from importlib import import_module
from pathlib import Path
root, venv = (Path(argument).resolve() for argument in sys.argv[1:3])
assert root not in [Path(part).resolve() for part in sys.path], sys.path
for package in map(import_module, sys.argv[3:]):
    assert venv in Path(package.__file__).resolve().parents, package.__file__
PYTHON
