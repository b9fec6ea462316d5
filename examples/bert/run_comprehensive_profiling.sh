#!/usr/bin/env bash
# Profile BERT in two sizes: `quick` always, `full` when asked for (`full` as first argument) or on a machine with
# a GPU (`quick` as first argument leaves it out). Results: ./profiling_results/quick and ./profiling_results/full.
# Further arguments are passed on, e.g. `./run_comprehensive_profiling.sh quick --force`.
# Uses $PYTHON, else the `.venv` of this clone, else python3.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

if [ -z "${PYTHON:-}" ]; then
    PYTHON="$here/../../.venv/bin/python"
    [ -x "$PYTHON" ] || PYTHON=python3
fi

size=auto
case "${1:-}" in
    quick | full)
        size="$1"
        shift
        ;;
    -h | --help)
        sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
esac

if [ "$size" = auto ]; then
    size=quick
    if "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        size=full
    fi
fi

echo "== quick: batch sizes 1 8, sequence length 128"
"$PYTHON" "$here/profile_bert.py" --batch-sizes 1 8 --seq-lens 128 --output-dir ./profiling_results/quick "$@"

if [ "$size" = full ]; then
    echo "== full: BertModel of transformers, batch sizes 1 4 8 16, sequence lengths 128 256 512"
    "$PYTHON" "$here/profile_bert.py" --use-real-bert --batch-sizes 1 4 8 16 --seq-lens 128 256 512 \
        --output-dir ./profiling_results/full "$@"
fi

echo "Reports: ./profiling_results/*/kernel_analysis_report_*.md"
