#!/usr/bin/env bash
# Start the emulated Runpod in the foreground and write .sandbox/env, which makes it the target "sandbox" of stepctl.
# Options are those of `python -m tests.doubles.runpod`. Real pods need root: sudo asks for it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v python)
sudo=()
case " $* " in
  *" --pods records "*) ;;
  *) [ "$(id -u)" = 0 ] || sudo=(sudo --preserve-env=STEPCTL_RUNPOD_OPENAPI,STEPCTL_SANDBOX_LEVEL) ;;
esac
exec ${sudo[@]+"${sudo[@]}"} "$python" -m tests.doubles.runpod --env .sandbox/env --show-python "$@"
