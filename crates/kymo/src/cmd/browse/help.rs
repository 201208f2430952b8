//! The page of keys.

/// The first line where the recording runs.
const LIVE: &str = "Up Down PgUp PgDn Home End  move; p or Space freezes the list, and goes on";

/// Its lines. `live`: the recording runs.
pub(super) fn lines(live: bool) -> impl Iterator<Item = &'static str> {
    HELP.lines().enumerate().map(move |(at, line)| if live && at == 0 { LIVE } else { line })
}

/// Its lines; a screen of 24 lines has all of them. Keys that perf report has mean what they mean
/// there.
const HELP: &str = "\
Up Down PgUp PgDn Home End  move; Space is a page down
Enter, +     open a row, or close it; of a module, thread, process or CPU: only
             its samples count from here on
Right, Left  open a row; close it, go to the row above it, or go back
e, E, C      open all below a row; open a whole tree; close all
Esc          go back: to all names, or to the list before
/            only names with what you type; of trees, stacks with such functions
1            functions, below each its callers
2, 3         the call tree, from outermost callers; from innermost functions
4, 5, 6, 7   modules, threads, processes, CPUs
c, o         callers of the selected function; what it calls (o for out)
d            only samples in the module of the row; again: all modules
t            choose a thread; again: all threads
f            conditions as of kymo query: cpu=0-3 and time=10%..20%
s            sort by what functions have themselves, or with what they called
Tab          the next event; Shift-Tab: the one before
F, H         percentages of what is left or of the whole; line of column names
L            the least percentage of a row
i, a         the row in full and notes on the recording; a function's code
P            write the list to perf.hist.N
Ctrl-L       draw the screen anew
?, h, F1     this page; q, Ctrl-C: end";
