#!/usr/bin/env bash
# Records the three schedules of bubblescope's own demo, with stages that do not contend for cores.
set -euo pipefail
cd "$(dirname "$0")"
for schedule in gpipe 1f1b zb-h1; do
  bubblescope demo --schedule "$schedule" --sleep-compute 5 --steps 3 --no-open -o "$schedule"
  rm "$schedule/timeline.html"
done
