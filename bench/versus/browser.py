"""A page in Chromium without a screen, over the devtools protocol on two pipes."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from versus.runner import Refusal

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--remote-debugging-pipe"]
ANSWER_S = 120


class Tab:
    """A browser with one page. The page is opened by `show`, so that starting the browser is not measured."""

    def __init__(self, size=(1280, 1000)):
        program = shutil.which("chromium")
        if not program:
            raise Refusal("no chromium on this machine")
        self.folder = tempfile.mkdtemp(prefix="kymo-browser-")
        (theirs_in, self.to), (self.back, theirs_out) = os.pipe(), os.pipe()
        # The protocol is on descriptors 3 and 4.
        command = ["sh", "-c", f"exec \"$@\" 3<&{theirs_in} 4>&{theirs_out}", "sh", program, *ARGUMENTS, f"--user-data-dir={self.folder}"]
        self.browser = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.rest, self.number, self.session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Performance"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.browser.kill()
        self.browser.wait()
        os.close(self.to)
        os.close(self.back)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise Refusal(f"{method}: {answer['error']}")
                return answer["result"]

    def message(self):
        while b"\0" not in self.rest:
            if not select.select([self.back], [], [], ANSWER_S)[0]:
                raise Refusal("the browser does not answer")
            self.rest += os.read(self.back, 1 << 20)
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise Refusal(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression):
        until = time.monotonic() + ANSWER_S
        while not self.evaluate(f"Boolean({expression})"):
            if time.monotonic() > until:
                raise Refusal(f"never true: {expression}")
            time.sleep(0.002)

    def show(self, address):
        """Opens an address; until the page has drawn itself."""
        self.call("Page.navigate", url=address)
        self.wait("document.getElementById('selfcheck')?.textContent.length > 0")

    def heap_bytes(self):
        """What the page's objects take after garbage was collected."""
        self.call("HeapProfiler.collectGarbage")
        usage = self.call("Runtime.getHeapUsage")
        # Arrays of numbers have their memory outside of the heap.
        return int(usage["usedSize"] + usage["backingStorageSize"])
