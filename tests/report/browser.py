"""A headless Chromium by its DevTools protocol over a pipe: nothing but Python's own library is needed."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find():
    """The path of a browser, or None."""
    names = [os.environ.get("LEVIN_BROWSER"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
    return next((path for path in (shutil.which(name) for name in names if name) if path), None)


class Browser:
    def __init__(self, path):
        self.profile = tempfile.mkdtemp(prefix="levin_browser_")
        to_read, self.to = os.pipe()
        self.source, from_write = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4.
        shell = f"exec 3<&{to_read} 4>&{from_write}; exec \"$@\""
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
                 "--disable-dev-shm-usage", "--disable-background-networking", "--force-device-scale-factor=1", "--remote-debugging-pipe",
                 f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(["bash", "-c", shell, "browser", path, *flags], pass_fds=(to_read, from_write),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.buffer, self.count, self.events = b"", 0, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def message(self, timeout):
        end = time.monotonic() + timeout
        while b"\0" not in self.buffer:
            if not select.select([self.source], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self.source, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, timeout=60, **params):
        self.count += 1
        request = {"id": self.count, "method": method, "params": params}
        if getattr(self, "session", None):
            request["sessionId"] = self.session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            answer = self.message(timeout)
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def size(self, width, height, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, url, ready="document.documentElement?.dataset.ready === '1'", timeout=60):
        """Loads a page; returns the seconds until it is ready and has been painted."""
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        begin = time.monotonic()
        self.call("Page.navigate", url=url)
        while not self.evaluate(ready):
            if time.monotonic() - begin > timeout:
                raise TimeoutError(f"{url} is not ready after {timeout} s: {self.errors()}")
            time.sleep(0.01)
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
        return time.monotonic() - begin

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:600])
        return result["result"].get("value")

    def errors(self):
        """Lines of errors since the page was opened: exceptions, console.error, refused scripts."""
        out = []
        for event in self.events:
            p = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                out.append(p["exceptionDetails"].get("exception", {}).get("description", p["exceptionDetails"]["text"]))
            if event.get("method") == "Log.entryAdded" and p["entry"]["level"] == "error":
                out.append(p["entry"]["text"])
            if event.get("method") == "Runtime.consoleAPICalled" and p["type"] == "error":
                out.append(" ".join(str(a.get("description", a.get("value"))) for a in p["args"]))
        return out

    def requests(self):
        """Addresses that the page asked for, itself not counted."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"
                and e["params"].get("type") != "Document"]

    def mouse(self, kind, x, y, **params):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **params)

    def key(self, key):
        code = {"key": key, "text": key} if len(key) == 1 else {"key": key}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path, full=False):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)["data"]
        with open(path, "wb") as out:
            out.write(base64.b64decode(data))

    def pdf(self, path):
        with open(path, "wb") as out:
            out.write(base64.b64decode(self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]))

    def close(self):
        try:
            self.session = None
            self.call("Browser.close", timeout=5)
        except Exception:
            pass
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
        os.close(self.to)
        os.close(self.source)
        shutil.rmtree(self.profile, ignore_errors=True)
