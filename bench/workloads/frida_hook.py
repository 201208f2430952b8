"""Hooks one function of a process with frida-gum, with handlers in C, and says how often it was called.

    frida_hook.py PID FUNCTION entry|return

Says "attached", ends when a line comes, and prints {"hits": N}. Handlers in JavaScript would cost microseconds; these are what frida
recommends for hot functions.
"""

import json
import sys

import frida

SCRIPT = """
const counts = Memory.alloc(8);
const code = new CModule(`
#include <gum/guminterceptor.h>
extern volatile gint64 counts;
void entry(GumInvocationContext *ic) { __atomic_or_add }
void back(GumInvocationContext *ic) { }
`.replace('__atomic_or_add', 'counts++;'), { counts });
const address = DebugSymbol.fromName('%s').address;
Interceptor.attach(address, %s);
Interceptor.flush();
rpc.exports = { hits: () => counts.readU64().toString() };
"""


def main():
    pid, function, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    handlers = "{ onEnter: code.entry }" if kind == "entry" else "{ onEnter: code.entry, onLeave: code.back }"
    session = frida.attach(pid)
    script = session.create_script(SCRIPT % (function, handlers))
    script.load()
    print("attached", flush=True)
    sys.stdin.readline()
    print(json.dumps({"hits": int(script.exports_sync.hits())}), flush=True)
    session.detach()


if __name__ == "__main__":
    main()
