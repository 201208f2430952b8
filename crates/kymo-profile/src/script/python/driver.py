# Runs a script written for `perf script -s`, and calls its functions with the events that kymo sends.
#
# Arguments: the descriptor of the events (pickles, one after another), that of a socket for
# questions (a line each), the script, its arguments.


def kymo_driver():
    import sys

    # `python3 -c` looks for modules in the current directory first; a script has its own there.
    if sys.path and sys.path[0] == "":
        del sys.path[0]

    import importlib.abc
    import importlib.util
    import json
    import linecache
    import os
    import pickle
    import signal
    import traceback
    import types

    events_fd, questions_fd = int(sys.argv[1]), int(sys.argv[2])
    sys.argv = sys.argv[3:]
    script = sys.argv[0]
    for fd in (events_fd, questions_fd):
        os.set_inheritable(fd, False)
    events = os.fdopen(events_fd, "rb", 1 << 16)

    # As perf: Ctrl-C ends the events, and the script then prints what it has. The second one ends all.
    def interrupted(number, frame):
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGINT, interrupted)

    def ask(*words):
        os.write(questions_fd, (" ".join(map(str, words)) + "\n").encode())
        answer = b""
        while not answer.endswith(b"\n"):
            part = os.read(questions_fd, 1 << 16)
            if not part:
                return None
            answer += part
        return json.loads(answer)

    class Context:
        """What the script hands back to the functions below."""

    context = Context()
    current = {"place": None, "common": (0, 0, 0)}

    def perf_sample_srcline(context):
        place = current["place"]
        file, line = (ask("line", *place) if place else None) or (None, 0)
        return (file, line)

    def perf_sample_srccode(context):
        file, line = perf_sample_srcline(context)
        return (file, line, (file and linecache.getline(file, line).rstrip("\n")) or None)

    def perf_sample_insn(context):
        return None

    module = types.ModuleType("perf_trace_context")
    module.perf_script_context = context
    module.common_pc = lambda context: current["common"][0]
    module.common_flags = lambda context: current["common"][1]
    module.common_lock_depth = lambda context: current["common"][2]
    module.perf_sample_srcline = perf_sample_srcline
    module.perf_sample_srccode = perf_sample_srccode
    module.perf_sample_insn = perf_sample_insn
    module.perf_set_itrace_options = lambda context, options: -1
    module.perf_config_get = lambda name: None
    sys.modules["perf_trace_context"] = module

    # The modules that perf's scripts import, where perf is not installed.
    helpers = pickle.load(events)

    class Helpers(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path=None, target=None):
            return importlib.util.spec_from_loader(name, self) if name in helpers else None

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            exec(compile(helpers[module.__name__], "<kymo " + module.__name__ + ">", "exec"), module.__dict__)

    sys.meta_path.append(Helpers())

    main = types.ModuleType("__main__")
    scope = main.__dict__
    scope["__file__"] = script
    sys.modules["__main__"] = main
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))

    def handler(name):
        function = scope.get(name)
        return function if callable(function) else None

    def parameters(function):
        return getattr(getattr(function, "__code__", None), "co_argcount", 0)

    def call(name, *arguments):
        function = handler(name)
        if function:
            function(*arguments)

    formats = {}

    def define(name, fields, flags):
        formats[name] = fields
        for field, delimiter, values in flags:
            kind = "symbolic" if delimiter is None else "flag"
            call("define_" + kind + "_field", *([name, field] + ([] if delimiter is None else [delimiter])))
            for value, text in values:
                call("define_" + kind + "_value", name, field, value, text)

    def tracepoint(name, common, chain, values, place, sample, counts):
        current["place"], current["common"] = place, counts
        function = handler(name)
        if function:
            arguments = (name, context) + common + (chain,) + values
        else:
            function = handler("trace_unhandled")
            if not function:
                return
            fields = dict(zip(("common_cpu", "common_s", "common_ns", "common_pid", "common_comm"), common))
            fields["common_callchain"] = chain
            fields.update(zip(formats[name], values))
            arguments = (name, context, fields)
        if parameters(function) == len(arguments) + 1:
            arguments += (sample,)
        function(*arguments)

    def sample(values, place):
        current["place"] = place
        call("process_event", values)

    actions = {"define": define, "tracepoint": tracepoint, "sample": sample, "call": call}

    def run():
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec")
        exec(code, scope)
        scope["perf_script_context"] = context
        call("trace_begin")
        names = {name: parameters(value) for name, value in scope.items() if callable(value)}
        is_export = bool(scope.get("perf_db_export_mode"))
        os.write(questions_fd, (json.dumps({"handlers": names, "export": is_export}) + "\n").encode())
        while True:
            try:
                message = pickle.load(events)
            except (EOFError, pickle.UnpicklingError):
                # kymo has ended, and has said why.
                sys.exit(1)
            if message[0] == "end":
                break
            actions[message[0]](*message[1:])
        call("trace_end")

    try:
        run()
    except Exception as error:
        # The script's own lines only.
        part = error.__traceback__
        while part and part.tb_frame.f_code.co_filename == "<string>":
            part = part.tb_next
        traceback.print_exception(type(error), error, part)
        sys.exit(1)


kymo_driver()
