"""Programs that take turns: all of them are ready, one at a time makes a round of steps, and the others wait.

A program is started with --turns. It prints {"ready": ...} when it has warmed up, {"round": MS} after each round that a line on
its stdin asked for, and its figure, {"name": ..., "ms": ..., ...}, when stdin has ended. {"skip": "why"} instead: there is nothing
to do here. A busy or throttled machine is then unkind to all of them alike, and nothing is compiled or captured twice.
"""
import concurrent.futures
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time


class Player:
    """One process: `side` is "levin" or "peer", `mode` how it runs."""

    def __init__(self, side, mode, command, patience):
        self.side, self.mode, self.command, self.patience = side, mode, command, patience
        self.rounds, self.figure, self.skip, self.error = [], None, None, None
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env={**os.environ, "PYTHONUNBUFFERED": "1"})
        self._answer("ready")

    @property
    def plays(self):
        return self.skip is None and self.error is None

    def _answer(self, key):
        """The next line with that key; None when the program ended, failed or skips."""
        timer = threading.Timer(self.patience, self.process.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                try:
                    answer = json.loads(line) if line.startswith("{") else {}
                except ValueError:
                    continue
                if "skip" in answer:
                    self.skip = answer["skip"]
                    self._finish()
                    return None
                if key in answer:
                    return answer
        finally:
            timer.cancel()
        self._finish()
        self.log.seek(0)
        self.error = f"exited with {self.process.returncode}: {self.log.read().strip()[-400:]}"
        return None

    def _finish(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.stdout.close()
        self.process.wait()

    def play(self):
        try:
            print("go", file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass  # the answer says why
        answer = self._answer("round")
        if answer:
            self.rounds.append(answer["round"])

    def end(self):
        """Asks for the figure. Its median and spread are taken here, over all rounds."""
        if not self.plays:
            return
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.figure = self._answer("ms")
        if self.figure is None:
            return
        self._finish()
        self.figure.update(ms=statistics.median(self.rounds), spread=[min(self.rounds), max(self.rounds)], rounds=self.rounds)


def take_turns(cases, rounds, say, patience=900, rest=0):
    """Measures cases, {name: (levin, peers)} with {mode: command} each. All programs of all cases start together and wait until all
    are ready; then the cases are measured one by one. They must fit into the memory of the device together. Nobody works for `rest`
    seconds before each round.
    Returns {name: {"levin": {mode: figure}, "peer": {mode: figure}}} and whether nothing failed."""
    ok = True
    results = {case: {"levin": {}, "peer": {}} for case in cases}

    def failed(case, player):
        nonlocal ok
        ok = False
        say(f"{case}: {player.side} {player.mode} {player.error}")

    started = [(case, side, mode, command) for case, sides in cases.items()
               for side, commands in zip(("levin", "peer"), sides) for mode, command in commands.items()]
    with concurrent.futures.ThreadPoolExecutor(len(started) or 1) as threads:
        players = list(threads.map(lambda s: (s[0], Player(*s[1:], patience)), started))
    for case, player in players:
        if player.skip:
            say(f"{case}: {player.side} {player.mode} skipped: {player.skip}")
        elif player.error:
            failed(case, player)
    try:
        for case in cases:
            playing = [player for name, player in players if name == case and player.plays]
            for turn in range(rounds):
                # Who comes first changes: a device that has just idled is cooler.
                for player in playing if turn % 2 == 0 else playing[::-1]:
                    if player.plays:
                        time.sleep(rest)
                        player.play()
                        if player.error:
                            failed(case, player)
            if playing:
                say(f"{case}: " + ", ".join(f"{p.side} {p.mode} {statistics.median(p.rounds):.3f} ms" for p in playing if p.rounds))
    finally:
        for case, player in players:
            before = player.error
            player.end()
            if player.error and not before:
                failed(case, player)
            if player.figure:
                results[case][player.side][player.mode] = player.figure
    return results, ok


def best_of(figures):
    """(mode, figure) of the fastest; (None, None) of none."""
    return min(figures.items(), key=lambda item: item[1]["ms"], default=(None, None))


def compare(case, sides):
    """Both sides at their best: the ratio is how many times faster Levin is; its range is what the rounds allow."""
    (levin_mode, levin), (peer_mode, peer) = best_of(sides["levin"]), best_of(sides["peer"])
    ratio = peer["ms"] / levin["ms"] if levin and peer else None
    between = [peer["spread"][0] / levin["spread"][1], peer["spread"][1] / levin["spread"][0]] if ratio else None
    return {"case": case, "levin_mode": levin_mode, "peer_mode": peer_mode, "ratio": ratio, "ratio_range": between, **sides}
