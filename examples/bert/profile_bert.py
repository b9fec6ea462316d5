"""Profile BERT over batch sizes and sequence lengths: `opscope profile bert` with defaults to edit.

Writes three files per configuration into the output directory: profiling_stats_bs{N}_seq{M}.json,
kernel_analysis_report_bs{N}_seq{M}.md and bert_trace_bs{N}_seq{M}.json. Options that are not listed here
(`opscope profile --help` names them) are passed on as they are.
"""

import argparse
import sys

from opscope.cli import main as opscope


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Profile BERT over batch sizes and lengths.", allow_abbrev=False
    )
    # fmt: off
    parser.add_argument('--batch-sizes', type=int, nargs='+', default=[1, 8, 16])
    parser.add_argument('--seq-lens', type=int, nargs='+', default=[128, 256])
    parser.add_argument('--output-dir', default='./profiling_results')
    parser.add_argument('--use-real-bert', action='store_true', help="the BertModel of transformers")
    parser.add_argument('--skip-benchmark', action='store_true', help="no latency measurement")
    # fmt: on
    options, further = parser.parse_known_args()
    return opscope(["profile", "bert", *command_line(options), *further])


def command_line(options: argparse.Namespace) -> list[str]:
    words = ["--batch-sizes", *map(str, options.batch_sizes), "--seq-lens", *map(str, options.seq_lens)]
    words += ["--output-dir", options.output_dir]
    words += ["--use-real-bert"] if options.use_real_bert else []
    words += ["--skip-benchmark"] if options.skip_benchmark else []
    return words


if __name__ == "__main__":
    sys.exit(main())
