#!/usr/bin/env bash
# Make .venv with the tested version of everything, and stepctl itself from this folder. Quick when nothing changed.
# PYTHON is the interpreter that a new .venv is made with (default python3, at least 3.11).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=.venv
stamp=$venv/.installed

digest() {
  "$venv/bin/python" - requirements.lock pyproject.toml src/stepctl/__init__.py scripts/install.sh <<'PY'
import hashlib, pathlib, sys

print(sys.version_info[:3], hashlib.sha256(b"\0".join(pathlib.Path(name).read_bytes() for name in sys.argv[1:])).hexdigest())
PY
}

# A .venv whose interpreter is gone, or that was cut short before it had pip, is made anew.
if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "install: $python is not Python 3.11 or newer; name one: PYTHON=/path/to/python3.11 make ..." >&2
    exit 1
  fi
  rm -rf "$venv"
  if ! "$python" -m venv "$venv"; then
    rm -rf "$venv"
    echo "install: $python could not make $venv; on Debian and Ubuntu its package python3-venv is needed" >&2
    exit 1
  fi
fi

wanted=$(digest)
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  exit 0
fi
rm -f "$stamp"
echo "installing stepctl and what it needs into $venv (a few minutes the first time)" >&2
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input -qq install)
"${pip[@]}" -r requirements.lock
"${pip[@]}" --no-deps --no-build-isolation -e .
echo "$wanted" >"$stamp"
