#!/usr/bin/env python3
"""Probes every function of real programs while these work, and says whether anything changed.

    bench/everything.py                       all programs, all modes, and the counts (some 30 minutes)
    bench/everything.py --quick               a C++ and a Rust program and the counts of two, in seconds
    bench/everything.py --only cpython,zstd --how random --do returns

Every program runs once as it is and once for each mode, with a library that is preloaded into it and probes all functions of the named
modules (crates/kymo-agent/examples/everything): all at once for the whole run, one group after another, or coming and going at random;
counted, with a look at returns, with times, or recorded. Output and exit status must be the same. Then hits are compared with counts that
are known otherwise: of a build with -finstrument-functions, and of the kernel's uprobes on the same sites (as root).

bench/README.md says how to read the table. Needs Python 3.9, a Rust toolchain, g++; programs that are not installed are skipped and named.
"""

import sys

from everything import cli

if __name__ == "__main__":
    sys.exit(cli.main())
