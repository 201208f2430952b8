#!/usr/bin/env bash
# Records two commands in turns and compares them: the first step of the action in action.yml.
#
# Reads KYMO, KYMO_OLD, KYMO_NEW, KYMO_RUNS and KYMO_OPTIONS. Writes diff.md, diff.xml, the flame
# graphs and the recordings into a folder, and `status` and `folder` into $GITHUB_OUTPUT.
set -uo pipefail

folder=${RUNNER_TEMP:-$(mktemp -d)}/kymo-diff
mkdir -p "$folder"
# Options are words, as on a command line.
read -ra options <<<"${KYMO_OPTIONS:-}"
"${KYMO:-kymo}" diff --md -o "$folder" --junit "$folder/diff.xml" --flamegraph "$folder/diff.svg" \
    -n "${KYMO_RUNS:-10}" --run "$KYMO_OLD" --run "$KYMO_NEW" "${options[@]}" >"$folder/diff.md"
status=$?
{
    echo "status=$status"
    echo "folder=$folder"
} >>"${GITHUB_OUTPUT:-/dev/stdout}"
cat "$folder/diff.md" >>"${GITHUB_STEP_SUMMARY:-/dev/stderr}"
# A later step turns the status into the result of the job, after the comment.
exit 0
