"""A headless Firefox, spoken to in WebDriver BiDi: no driver program between.

Any stock Firefox listens for the protocol by itself (``--remote-debugging-port``);
``websocket-client`` carries it. Firefox is Debian's (``apt-get install firefox-esr``)
or what ``MEMPROF_FIREFOX`` names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

START_SECONDS = 60
ANSWER_SECONDS = 60
LISTENS = re.compile(r"^WebDriver BiDi listening on (ws://\S+)$", re.MULTILINE)
# Nothing that a request leaves the machine by: the proxy is a port that nobody serves.
PREFERENCES = {
    "network.proxy.type": 1,
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
    "network.proxy.allow_hijacking_localhost": True,
    "toolkit.telemetry.reportingpolicy.firstRun": False,
    "browser.shell.checkDefaultBrowser": False,
    "dom.ipc.processPrelaunch.enabled": False,
    "dom.ipc.processCount": 1,
    "app.normandy.enabled": False,
    "browser.newtabpage.enabled": False,
    "extensions.getAddons.cache.enabled": False,
    "browser.download.folderList": 2,  # the folder that is named beside
}
# WebDriver's names of keys that are no character.
KEYS = {
    "Shift": "\ue008",
    "Control": "\ue009",
    "Escape": "\ue00c",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
}
# In each document before its own scripts. The log does not tell of blocked loads
# in every release: the event does.
LISTENER = """(tell) => addEventListener("securitypolicyviolation", (event) =>
    tell(`${event.effectiveDirective}: ${event.blockedURI}`), true)"""


def executable() -> str | None:
    """Return Firefox's path."""
    named = os.environ.get("MEMPROF_FIREFOX")
    return named or shutil.which("firefox-esr") or shutil.which("firefox")


def why_not() -> str:
    """Return what is missing; ``""``: nothing."""
    missing = []
    if importlib.util.find_spec("websocket") is None:
        missing.append("websocket-client")
    if executable() is None:
        missing.append("firefox-esr (a Debian package)")
    return ", ".join(missing)


def strangers(asked: list[str]) -> list[str]:
    """Return what of ASKED a page has no right to ask for."""
    own = ("file:", "data:", "blob:", "about:")
    return [url for url in asked if not url.startswith(own)]


class Firefox:
    """A running browser, and one session with it."""

    def __init__(self, folder: Path) -> None:
        profile = folder / "profile"
        profile.mkdir()
        self.downloads = folder / "downloads"
        preferences = {**PREFERENCES, "browser.download.dir": str(self.downloads)}
        lines = (
            f"user_pref({json.dumps(name)}, {json.dumps(value)});\n"
            for name, value in preferences.items()
        )
        (profile / "user.js").write_text("".join(lines))
        self._log = folder / "firefox.log"
        command = [executable(), "--headless", "--remote-debugging-port=0"]
        command += ["--new-instance", "--profile", profile, "about:blank"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Root's Firefox takes no home that is another's.
                env={**os.environ, "HOME": str(folder)},
            )
        self._number = 0
        self._socket: Any = None
        self.told: list[tuple[str, dict[str, Any]]] = []
        """Events since the page was opened: method and parameters."""
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    def _greet(self) -> None:
        import websocket

        # Firefox refuses who names an origin, as pages of the web do.
        self._socket = websocket.create_connection(
            f"{self._address()}/session",
            timeout=ANSWER_SECONDS,
            suppress_origin=True,
            http_no_proxy=["127.0.0.1"],
        )
        begun = self.ask("session.new", capabilities={})
        self.version: str = begun["capabilities"]["browserVersion"]
        events = ["log.entryAdded", "network.beforeRequestSent", "script.message"]
        self.ask("session.subscribe", events=events)
        channel = {"type": "channel", "value": {"channel": "policy"}}
        self.ask(
            "script.addPreloadScript",
            functionDeclaration=LISTENER,
            arguments=[channel],
        )

    def _address(self) -> str:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            found = LISTENS.search(self._log.read_text(errors="replace"))
            if found:
                return found[1]
            time.sleep(0.05)
        said = self._log.read_text(errors="replace")[-2000:]
        raise RuntimeError(
            f"Firefox does not listen for WebDriver BiDi; it said: {said}"
        )

    def ask(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result; events meanwhile are kept."""
        self._number += 1
        words = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(words))
        while True:
            answer = json.loads(self._socket.recv())
            if answer["type"] == "event":
                self.told.append((answer["method"], answer["params"]))
            elif answer["id"] == self._number:
                if answer["type"] == "error":
                    raise RuntimeError(
                        f"{method}: {answer['error']}: {answer['message']}"
                    )
                return answer["result"]

    def close(self) -> None:
        """End the session and the browser."""
        try:
            if self._socket is not None:
                self.ask("browser.close")
                self._socket.close()
            else:
                self._process.terminate()
            self._process.wait(20)
        except Exception:
            self._process.kill()
            self._process.wait()


class Page:
    """A tab, all that was said in it, and all that it asked for."""

    def __init__(self, firefox: Firefox) -> None:
        self.firefox = firefox
        firefox.told.clear()
        made = firefox.ask("browsingContext.create", type="tab")
        self.top = self.context = made["context"]
        firefox.ask(
            "browsingContext.setViewport",
            context=self.top,
            viewport={"width": 1280, "height": 1000},
        )

    def close(self) -> None:
        """Close the tab."""
        self.firefox.ask("browsingContext.close", context=self.top)

    @property
    def said(self) -> list[str]:
        """Messages of the console, uncaught errors, what the policy blocked."""
        found = []
        for method, told in self.firefox.told:
            if method == "log.entryAdded":
                found.append(f"{told['level']}: {told['text']}")
            elif method == "script.message":
                found.append(f"policy: {told['data']['value']}")
        return found

    @property
    def asked(self) -> list[str]:
        """What pages requested; what the browser itself asks for has no context.

        Loads of files are not told.
        """
        return [
            told["request"]["url"]
            for method, told in self.firefox.told
            if method == "network.beforeRequestSent" and told["context"] is not None
        ]

    def goto(self, url: str) -> None:
        """Load a page, or another state of it, and wait until it is loaded."""
        self.firefox.ask(
            "browsingContext.navigate", context=self.top, url=url, wait="complete"
        )

    def open(self, path: Path, state: str = "") -> None:
        """Open a report and wait until it is there."""
        self.goto("about:blank")
        self.goto(f"{path.as_uri()}{state}")
        self.wait_ready()

    def enter_frame(self) -> None:
        """Speak to the page's only frame from here on."""
        tree = self.firefox.ask("browsingContext.getTree", root=self.top)["contexts"]
        (frame,) = tree[0]["children"]
        self.context = frame["context"]

    def wait_ready(self) -> None:
        """Wait until a report is decoded and drawn."""
        self.wait(
            "Boolean(window.memprof && (memprof.ready || memprof.errors().length))"
        )
        assert self.js("memprof.ready"), self.js("memprof.errors()")
        self.settle()

    def wait(self, condition: str, seconds: float = 30) -> None:
        """Wait until a condition is true."""
        until = time.monotonic() + seconds
        while not self.js(condition):
            assert time.monotonic() < until, (condition, self.said)
            time.sleep(0.02)

    def settle(self) -> None:
        """Let two frames pass."""
        self.js(
            "new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))"
        )

    def js(self, expression: str, argument: Any = None) -> Any:
        """Evaluate an expression, or call a function with ARGUMENT."""
        source = f"""async (given) => {{
            let made = ({expression});
            if (typeof made === "function") made = made(JSON.parse(given));
            return JSON.stringify(await made);
        }}"""
        answer = self._call(source, {"type": "string", "value": json.dumps(argument)})
        return json.loads(answer["value"]) if "value" in answer else None

    def _call(self, source: str, *arguments: dict[str, str]) -> Any:
        answer = self.firefox.ask(
            "script.callFunction",
            functionDeclaration=source,
            arguments=list(arguments),
            target={"context": self.context},
            awaitPromise=True,
        )
        if answer["type"] == "exception":
            raise RuntimeError(answer["exceptionDetails"]["text"])
        return answer["result"]

    def press(self, *names: str) -> None:
        """Press keys, ``Shift+P`` among them, and let the page draw."""
        actions = []
        for name in names:
            parts = name.split("+") if len(name) > 1 else [name]
            values = [KEYS.get(part, part) for part in parts]
            actions += [{"type": "keyDown", "value": value} for value in values]
            actions += [{"type": "keyUp", "value": value} for value in values[::-1]]
        self._act({"type": "key", "id": "keyboard", "actions": actions})

    def click(self, test: str) -> None:
        """Click the middle of the element with a test id, as a pointer does."""
        move = {"type": "pointerMove", "x": 0, "y": 0, "origin": self._middle(test)}
        down, up = ({"type": f"pointer{way}", "button": 0} for way in ("Down", "Up"))
        self._act({"type": "pointer", "id": "mouse", "actions": [move, down, up]})

    def wheel(self, test: str, by: int) -> None:
        """Turn the wheel over the middle of the element with a test id."""
        turn = {"type": "scroll", "x": 0, "y": 0, "deltaX": 0, "deltaY": by}
        turn["origin"] = self._middle(test)
        self._act({"type": "wheel", "id": "wheel", "actions": [turn]})

    def _middle(self, test: str) -> dict[str, Any]:
        source = """(name) => {
            const found = document.querySelector(`[data-testid="${name}"]`);
            found.scrollIntoView({block: "center"});
            return found;
        }"""
        element = self._call(source, {"type": "string", "value": test})
        return {"type": "element", "element": {"sharedId": element["sharedId"]}}

    def _act(self, source: dict[str, Any]) -> None:
        self.firefox.ask("input.performActions", context=self.context, actions=[source])
        self.settle()

    def check_quiet(self) -> None:
        """Fail if the page said anything, or asked for anything but itself."""
        self.settle()  # the policy's events come a task late
        assert self.said == []
        assert self.js("memprof.errors()") == []
        assert strangers(self.asked) == []
