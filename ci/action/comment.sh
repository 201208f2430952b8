#!/usr/bin/env bash
# Writes the comparison into a comment on the pull request: one comment, which later runs replace.
#
# Reads GH_TOKEN, PULL_REQUEST, GITHUB_REPOSITORY and FOLDER. Needs the program gh, which the
# machines of GitHub have.
set -euo pipefail

mark='<!-- kymo diff -->'
body=$(printf '%s\n%s\n' "$mark" "$(cat "$FOLDER/diff.md")")
comments="repos/$GITHUB_REPOSITORY/issues/$PULL_REQUEST/comments"
earlier=$(gh api "$comments" --paginate --jq ".[] | select(.body | startswith(\"$mark\")) | .id" | sed -n 1p)
if [ -n "$earlier" ]; then
    gh api --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$earlier" -f body="$body" >/dev/null
else
    gh api --method POST "$comments" -f body="$body" >/dev/null
fi
