"""Run the tests: of the core, of one process, of several ranks under the launcher.

    python tools/run_tests.py [core] [unit] [multi] [integration] [conformance] [-k WORD] [-v]

Every job is one command with a time limit of its own. A file of tests/multi says with a constant
`LAUNCHES` how it is started, e.g. `LAUNCHES = ["-np 2", "-np 4 -H localhost:2,127.0.0.1:2"]`, or, for each of
the environments below, `LAUNCHES = {"main": ["-np 2"], "tensorflow1": ["-np 2"]}`. Files of one framework
that are started alike share a launch, since importing the framework takes longer than most tests. Files that
are named test_launcher_* start processes themselves and run plainly, and so do those of tests/integration,
where a launch crosses a network or begins with somebody else's launcher. The last line says
'N passed, N failed'.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE_TESTS = ROOT / "build" / "module" / "tests" / "core" / "core_tests"
CONFORMANCE_LAUNCHES = [
    "-np 1",
    "-np 2",
    "-np 3",
    "-np 4",
    "-np 2 -H localhost:1,127.0.0.1:1",
    "-np 3 -H localhost:2,127.0.0.1:1",
    "-np 4 -H localhost:2,127.0.0.1:2",
]
ENVIRONMENTS = {
    "main": Path(sys.executable).parent,
    "tensorflow1": ROOT / ".venv-tensorflow1" / "bin",
}
# Files that share no process with others, and why.
ALONE = {
    "test_keras_legacy_graph.py": "turns eager execution off",
    "test_tensorflow_ops.py": "measures how the memory of its process grows",
}
SUITES = ("core", "unit", "multi", "integration", "conformance")
RESULTS_VARIABLE = "HVD_TEST_RESULTS"  # tests/conftest.py writes <rank>.json into this folder


@dataclass(frozen=True)
class Job:
    """One command, and how many ranks have to report results.

    Two jobs that are `modest` run at a time: they have one or two processes, or mostly wait for what they
    start.
    """

    name: str
    argv: list[str]
    ranks: int
    timeout: float
    modest: bool = False


@dataclass
class Tally:
    """How many tests passed, failed and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Tally) -> None:
        """Add the counts of `other`."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def pytest_argv(*arguments: str, environment: str = "main") -> list[str]:
    python = str(ENVIRONMENTS[environment] / "python")
    return [python, "-m", "pytest", "-p", "no:cacheprovider", *arguments]


def launched(
    name: str,
    paths: list[Path],
    launch: str,
    *,
    timeout: float,
    extra: list[str],
    environment: str = "main",
) -> Job:
    """Make the job that runs pytest on `paths` on every rank of `horovodrun <launch>`."""
    words = shlex.split(launch)
    ranks = int(words[words.index("-np") + 1])
    launcher = [str(ENVIRONMENTS[environment] / "python"), "-m", "horovod.runner", *words]
    tests = [str(path.relative_to(ROOT)) for path in paths]
    # A rank that fails is out of step with the others, so its first failure ends the job.
    argv = [*launcher, *pytest_argv("-x", "--timeout=120", *extra, *tests, environment=environment)]
    place = "" if environment == "main" else f" in {environment}"
    return Job(f"{name} [{launch}]{place}", argv, ranks, timeout, modest=ranks <= 2)


def family_of(path: Path) -> str:
    """Name the framework of a file of tests/multi; for Keras, the one below it too."""
    if path.name in ALONE:
        return path.stem.removeprefix("test_")
    found = re.match(r"test_(keras_[a-z]+|[a-z]+)_", f"{path.stem}_")
    assert found, path
    return found[1]


def declared_launches(path: Path) -> dict[str, list[str]]:
    """Read the constant `LAUNCHES` of a test file, by environment, without importing the file."""
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == "LAUNCHES" for t in targets):
            launches = ast.literal_eval(node.value)  # type: ignore[attr-defined]
            return launches if isinstance(launches, dict) else {"main": launches}
    return {"main": ["-np 2"]}


def jobs_of(suite: str, extra: list[str]) -> Iterator[Job]:
    """Yield the jobs of one suite; `extra` goes to pytest."""
    if suite == "core":
        yield Job("core", [str(CORE_TESTS)], 0, 600, modest=True)
    elif suite == "unit":
        yield Job("tests/unit", pytest_argv(*extra, "tests/unit"), 1, 900, modest=True)
    elif suite == "multi":
        alike: dict[tuple[str, str, str], list[Path]] = {}
        for path in sorted((ROOT / "tests" / "multi").glob("test_*.py")):
            if path.name.startswith("test_launcher_"):
                argv = pytest_argv(*extra, str(path.relative_to(ROOT)))
                yield Job(str(path.relative_to(ROOT)), argv, 1, 900, modest=True)
            else:
                for environment, launches in declared_launches(path).items():
                    for launch in launches:
                        alike.setdefault((family_of(path), environment, launch), []).append(path)
        for (family, environment, launch), paths in alike.items():
            name = f"tests/multi/test_{family}*"
            limit = 300 * len(paths)
            yield launched(name, paths, launch, timeout=limit, extra=extra, environment=environment)
    elif suite == "integration":
        for path in sorted((ROOT / "tests" / "integration").glob("test_*.py")):
            tests = str(path.relative_to(ROOT))
            yield Job(tests, pytest_argv(*extra, tests), 1, 900)
    else:
        for launch in CONFORMANCE_LAUNCHES:
            folder = ROOT / "tests" / "conformance"
            yield launched("tests/conformance", [folder], launch, timeout=600, extra=extra)


def run_bounded(job: Job, environment: dict[str, str], log: Path) -> int | None:
    """Run the command of `job`, its output in `log`. Return its exit status, None if out of time."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            job.argv,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(timeout=job.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


def tally_of_ranks(folder: Path, ranks: int) -> tuple[Tally, list[str]]:
    """Merge what the ranks reported: a test has passed if it passed on all of them."""
    outcomes: dict[str, str] = {}
    faults: list[str] = []
    for rank in range(ranks):
        path = folder / f"{rank}.json"
        if not path.exists():
            faults.append(f"rank {rank} reported nothing")
            continue
        for test, outcome in json.loads(path.read_text()).items():
            known = outcomes.get(test)
            if known in (None, outcome):
                outcomes[test] = outcome
            else:
                outcomes[test] = "failed" if "failed" in (known, outcome) else "passed"
            if outcome == "failed":
                faults.append(f"{test} failed on rank {rank}")
    values = list(outcomes.values())
    return Tally(*(values.count(word) for word in ("passed", "failed", "skipped"))), faults


def tally_of_core(log: Path) -> Tally:
    """Read the closing line of the C++ tests."""
    found = re.findall(r"^(\d+) passed, (\d+) failed$", log.read_text(errors="replace"), re.M)
    return Tally(int(found[-1][0]), int(found[-1][1])) if found else Tally()


def run(job: Job, verbose: bool) -> Tally:
    """Run one job, print its result and, if it failed, its output."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "log"
        status = run_bounded(job, {**os.environ, RESULTS_VARIABLE: name}, log)
        faults: list[str] = []
        if job.ranks:
            tally, faults = tally_of_ranks(folder, job.ranks)
        else:
            tally = tally_of_core(log)
        if status is None:
            faults.append(f"not finished after {job.timeout:.0f} s")
        elif status != 0 and not (status == 5 and job.ranks and not tally.passed):
            faults.append(f"exit status {status}")
        if faults and not tally.failed:
            tally.failed += 1
        lines = [f"{job.name}: {tally} ({time.monotonic() - started:.1f} s)"]
        if faults or verbose:
            lines.append(log.read_text(errors="replace")[-20_000:])
        lines += [f"  {fault}" for fault in faults]
        print("\n".join(lines), flush=True)  # at once: another job may have something to say
    return tally


def run_in_turn(jobs: list[Job], verbose: bool) -> Tally:
    """Run some jobs one after the other."""
    total = Tally()
    for job in jobs:
        total.add(run(job, verbose))
    return total


def main() -> int:
    """Run the chosen suites; the exit status is 1 if anything failed or nothing ran."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument("-k", metavar="WORD", help="only tests whose name has this word")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the output of all jobs")
    options = parser.parse_args()
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"unknown suite: {', '.join(sorted(unknown))}")
    extra = ["-k", options.k] if options.k else []
    # Started in the background it ignores Ctrl-C, as would all that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jobs = [job for suite in options.suites or SUITES for job in jobs_of(suite, extra)]
    if missing := {job.argv[0] for job in jobs if not Path(job.argv[0]).exists()}:
        names = ", ".join(sorted(missing))
        parser.error(f"not there: {names}; `make test` creates what tests need")
    # Those of integration share names of networks and users, so they run one after the other, beside others.
    integration = [job for job in jobs if job.name.startswith("tests/integration")]
    beside = [integration, *([job] for job in jobs if job.modest)]
    total = Tally()
    with ThreadPoolExecutor(max_workers=2) as pool:
        for tally in pool.map(lambda row: run_in_turn(row, options.verbose), beside):
            total.add(tally)
    many_ranks = [job for job in jobs if not job.modest and job not in integration]
    total.add(run_in_turn(many_ranks, options.verbose))
    print(total)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
