#!/usr/bin/env python3
"""Tests Tidewall on Debian's kernels with emulated network cards, in QEMU.

  fetch   fetches missing packages for the other commands
  load    checks that the driver program loads and attaches under each kernel, and that igb's RSS table is
          narrowed and restored (needs neither a card nor root)
  run     runs all checks in all cells, kernel by driver (as root); prints a table, writes
          out/kernels/kernels.json

Exit status: 0 all checks passed; 1 one failed. Environment: TIDEWALL, the program
(target/release/tidewall); TIDEWALL_KERNELS, the folder of fetched packages (target/kernels, 1 GB);
CI=true makes `load` fail, not skip, if nothing can be fetched.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time

import checks
from checks import near
from guest import HERE, Failed, Guest, die_with_parent, initramfs

ROOT = HERE.parent.parent
FOLDER = pathlib.Path(os.environ.get("TIDEWALL_KERNELS", ROOT / "target/kernels")).resolve()
PROGRAM = pathlib.Path(os.environ.get("TIDEWALL", ROOT / "target/release/tidewall")).resolve()
CARD = PROGRAM.parent / "examples/card"  # built by `cargo test`
OUT = ROOT / "out/kernels"
KERNELS = ("6.1", "6.12", "newest")
JOBS = 2  # guests at a time, of two processors each


def archive(kernel):
    return FOLDER / f"{kernel}.cpio"


def load(kernel):
    """Prints one line per kernel: whether `tidewall` loads and attaches its driver program there."""
    release, began = kernel, time.monotonic()
    try:
        with Guest(FOLDER / "tools", FOLDER / kernel, archive(kernel), OUT / f"{kernel}-load.console") as guest:
            cell = checks.Cell(guest, "veth")
            release = cell.run("uname -r")
            cell.run("ip link add eth0 type veth peer name peer && ip link set eth0 up && ip link set peer up")
            cell.run("tidewall doctor", 120)
            said, good = f"{cell.start(checks.ECHO)}; {cell.end('INT')}", True
    except Failed as failed:
        said, good = str(failed), False
    print(f"kernel {release}: {'ok' if good else 'FAILED'}: {said} ({time.monotonic() - began:.0f} s in all)", flush=True)
    return good


def rss(kernel):
    """Prints one line per kernel: whether igb's RSS table loses its last queue, and regains it after SIGKILL."""
    began = time.monotonic()
    options = ("-netdev", "hubport,id=net0,hubid=0", "-device", "igb,netdev=net0,romfile=")
    try:
        with Guest(FOLDER / "tools", FOLDER / kernel, archive(kernel), OUT / f"{kernel}-rss.console", *options) as guest:
            said, good = checks.rss(checks.Cell(guest, "igb")), True
    except Failed as failed:
        said, good = str(failed), False
    print(f"kernel {kernel}: igb: {'ok' if good else 'FAILED'}: {said} ({time.monotonic() - began:.0f} s in all)", flush=True)
    return good


def card(driver):
    """Creates the outside network in a namespace of this process. Returns QEMU's arguments for it."""
    model, queues = checks.DRIVERS[driver]
    if ctypes.CDLL(None).unshare(0x40000000):  # CLONE_NEWNET
        raise Failed("no network namespace can be made: this needs root")
    tap, several = ("multi_queue", f",queues={queues}") if queues > 1 else ("", "")
    near(f"ip link set lo up && ip tuntap add tap0 mode tap vnet_hdr {tap}")
    near("ip addr add 10.77.0.1/24 dev tap0 && ip addr add fd77::1/64 dev tap0 nodad && ip link set tap0 up")
    return ("-netdev", f"tap,id=net0,ifname=tap0,script=no,downscript=no{several}", "-device",
            f"{model},netdev=net0,mac=52:54:00:77:00:02,romfile=" + (f",mq=on,vectors={2 * queues + 2}" if several else ""))


def prepare(cell):
    """Sets up addresses in the guest, a container if the cell has one, and services on kernel sockets."""
    up = "echo 1 >/proc/sys/net/ipv6/conf/all/keep_addr_on_down; ip link set lo up; ip link set eth0 up"
    cell.run(up)
    if "container" in cell.driver:
        cell.run("ip link add br0 type bridge; ip link set br0 up; ip link set eth0 master br0; ip netns add container;"
                 "ip link add port0 type veth peer name eth0 netns container; ip link set port0 master br0 up")
        cell.guest.enter("container")
        cell.run(up)
    cell.run(f"ip addr add {checks.V4}/24 dev eth0; ip addr add {checks.V6}/64 dev eth0 nodad; busybox httpd -p 8080 -h /srv")
    cell.run("tidewall serve echo --on linux --port 9007 --address :: >/dev/null 2>&1 &")
    cell.linked()
    near(f"ping -q -c 1 -W 5 {checks.V4} && ping -q -c 1 -W 5 {checks.V6}")


def run(kernel, driver, wanted):
    """Runs a cell's checks. Returns the result and text of each."""
    done = {"kernel": kernel, "driver": driver, "checks": []}

    def note(name, column, result, said, seconds=0.0):
        done["checks"].append({"name": name, "column": column, "result": result, "said": said, "seconds": round(seconds, 1)})
        print(f"{kernel:>6} {driver:<20} {name:<16} {result:<8} {' '.join(said.split())[:200]}", flush=True)

    def check(name, column, function, *arguments):
        began = time.monotonic()
        try:
            result, said = "ok", function(*arguments)
        except checks.NotHere as reason:
            result, said = "not here", str(reason)
        except Exception as reason:  # any error, including unreadable statistics
            result, said = "failed", str(reason) if isinstance(reason, Failed) else repr(reason)
            if name == "start" and driver in checks.WITHOUT_XDP and checks.REFUSED in said:
                result, said = "refused", f"{said}; {cell.unchanged()}"
        note(name, column, result, said, time.monotonic() - began)
        return result

    try:
        console = OUT / f"{kernel}-{driver}.console".replace(" ", "-")
        with Guest(FOLDER / "tools", FOLDER / kernel, archive(kernel), console, *card(driver)) as guest:
            cell = checks.Cell(guest, driver)
            done["release"] = cell.run("uname -r")
            prepare(cell)
            if "doctor" in wanted:
                check("doctor", "doctor", checks.doctor, cell)
            for service, before, after, stage, (end, number) in checks.STAGES:
                stage = [part for part in stage if part[0] in wanted]
                if not stage and end not in wanted:
                    continue
                try:
                    before(cell)
                except checks.NotHere as reason:
                    for name, column, _ in stage:
                        note(name, column, "not here", str(reason))
                    continue
                started = check("start", "start", cell.start, service)
                if started == "ok":
                    for part in stage:
                        check(*part, cell)
                    check(end, "end", cell.end, number)
                after(cell)
                if started == "refused" or service is checks.STAGES[0][0] and started != "ok":
                    break
    except Failed as failed:
        note("guest", "start", "failed", str(failed))
    return done


def table(cells):
    """Returns the results as a Markdown table, followed by the first cell's reason for each failed check."""
    lines = ["| kernel | driver | " + " | ".join(checks.COLUMNS) + " |", "|---" * (2 + len(checks.COLUMNS)) + "|"]
    reasons = {}
    for cell in cells:
        row = []
        for column in checks.COLUMNS:
            results = [check["result"] for check in cell["checks"] if check["column"] == column]
            worst = next((result for result in ("failed", "refused", "ok") if result in results), "–")
            row.append("**failed**" if worst == "failed" else worst)
        lines.append(f"| {cell.get('release', cell['kernel'])} | {cell['driver']} | {' | '.join(row)} |")
        for check in cell["checks"]:
            if check["result"] in ("failed", "refused"):
                _, where = reasons.setdefault((check["name"], check["result"]), (" ".join(check["said"].split()), {}))
                where.setdefault(cell["kernel"], {})[cell["driver"]] = True
    return "\n".join([*lines, "", *(
        f"- {name} {result} ({'; '.join(f'{kernel}: ' + ', '.join(drivers) for kernel, drivers in where.items())}): {said}"
        for (name, result), (said, where) in reasons.items())])


def processes(function, tasks):
    """Runs `function` on each task in a separate process, JOBS at a time. Returns the results. However a
    process ends, the kernel ends its guest and its network namespace with it."""
    slots = multiprocessing.Semaphore(JOBS)

    def work(task, end):
        die_with_parent()
        try:
            with slots:
                end.send(function(*task))
        except KeyboardInterrupt:
            pass

    ends = []
    for task in tasks:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        multiprocessing.Process(target=work, args=(task, theirs), daemon=True).start()
        theirs.close()
        ends.append(ours)
    return [end.recv() for end in ends]


def skip(why):
    line = f"SKIPPED {why}"
    print(line)
    with open(os.environ.get("TIDEWALL_SKIPPED", os.devnull), "a") as skipped:
        print(line, file=skipped)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fetch", "load", "run"))
    parser.add_argument("--kernel", action="append", help=f"a series that Debian has, or newest [{', '.join(KERNELS)}]")
    parser.add_argument("--driver", action="append", choices=checks.DRIVERS)
    parser.add_argument("--check", action="append", choices=checks.NAMES)
    options = parser.parse_args()
    kernels = options.kernel or KERNELS
    if options.what != "fetch" and not PROGRAM.exists():
        sys.exit(f"no {PROGRAM}: build it, or name another as TIDEWALL")
    fetched = subprocess.run([HERE / "fetch.sh", FOLDER, *kernels]).returncode
    if options.what == "fetch":
        return fetched
    if fetched:
        if options.what == "load" and os.environ.get("CI") != "true":
            skip("kernels: they could not be fetched")
            return 0
        return 1
    OUT.mkdir(parents=True, exist_ok=True)
    os.nice(10)
    began = time.monotonic()
    files = {f"srv/{name}": data for name, data in checks.FILES.items()}
    programs = {"tidewall": PROGRAM, **({"card": CARD} if CARD.exists() else {})}
    for kernel in kernels:
        archive(kernel).write_bytes(initramfs(FOLDER / "tools", FOLDER / kernel, programs, files))
    if options.what == "load":
        good = all(processes(load, [(kernel,) for kernel in kernels]))
        if "card" in programs:
            good &= all(processes(rss, [(kernel,) for kernel in kernels]))
        else:
            skip(f"rss: no {CARD} (cargo build -p tidewall-manager --example card)")
    else:
        cells = processes(run, [(kernel, driver, set(options.check or checks.NAMES))
                                for kernel in kernels for driver in options.driver or checks.DRIVERS])
        good = not any(check["result"] == "failed" for cell in cells for check in cell["checks"])
        (OUT / "kernels.md").write_text(table(cells) + "\n")
        (OUT / "kernels.json").write_text(json.dumps(cells, indent=1, ensure_ascii=False) + "\n")
        print(f"\n{table(cells)}\n")
    print(f"kernels: {'ok' if good else 'FAILED'} after {time.monotonic() - began:.0f} s; see {OUT}")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
