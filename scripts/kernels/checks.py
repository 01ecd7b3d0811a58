"""The checks of a cell (kernel by driver): they start a service, query it from outside and end it.

The guest is 10.77.0.2 and fd77::2. The clients are plain sockets outside, beyond the tap in this process's
network namespace. A check returns a text for the report, or raises Failed, or NotHere if it does not apply
to the cell.
"""

import difflib
import http.client
import itertools
import json
import random
import re
import socket
import subprocess
import time

from guest import Failed

V4, V6, LATER = "10.77.0.2", "fd77::2", "10.77.0.3"
SIZES = (8, 64, 255, 256, 257, 512, 1000, 1400, 1472, 1473, 3000, 8000)
FILES = {str(size): random.Random(size).randbytes(size) for size in (0, 1, 255, 256, 257, 1024, 65536, 300_000, 1 << 20)}
# Emulated devices: model, and queue pairs that the host configures (other models have a fixed number).
DRIVERS = {
    "virtio-net 1 queue": ("virtio-net-pci", 1),
    "virtio-net 2 queues": ("virtio-net-pci", 2),
    "igb": ("igb", 1),
    "vmxnet3": ("vmxnet3", 1),
    "e1000e": ("e1000e", 1),
    "veth in a container": ("virtio-net-pci", 1),
}
REFUSED = "no native XDP"  # a refusal contains this, on drivers without native XDP
WITHOUT_XDP = {"e1000e"}
# A first exchange may take two round trips and 10 ms. Times in an emulated guest are rough, so the check
# fails only for an exchange that waited for a retransmission timer; nothing else takes so long.
TIMER = 0.5


class NotHere(Exception):
    """The check does not apply to the cell."""


class Cell:
    """A guest with its card and the service that runs in it."""

    def __init__(self, guest, driver):
        self.guest, self.driver, self.before = guest, driver, ""

    def run(self, command, seconds=60):
        """Returns the output of a command in the guest, which must succeed."""
        output, status = self.guest.run(command, seconds)
        if status:
            raise Failed(f"`{command}` exits {status}: {output[-300:]}")
        return output

    def wait(self, condition, seconds=10):
        """Waits in the guest until a condition holds. Returns whether it does."""
        tries = seconds * 10
        return self.guest.run(f"i=0; until {condition}; do i=$((i+1)); [ $i -lt {tries} ] || break; sleep 0.1; done; {condition}",
                              seconds + 30)[1] == 0

    def linked(self):
        """Waits for the carrier: some cards reset their link when a program is attached."""
        if not self.wait("[ \"$(cat /sys/class/net/eth0/carrier)\" = 1 ]"):
            raise Failed("the card has no carrier")

    def knobs(self):
        """Returns all settings that a stack may change and must restore."""
        return self.guest.run(
            "ip -d link show eth0; (cd /sys/class/net/eth0; grep -H . napi_defer_hard_irqs gro_flush_timeout queues/*/*ps_cpus threaded);"
            "for w in -c -k -l -x -n; do ethtool $w eth0; done; ls /sys/fs/bpf; find /run/tidewall ! -type d 2>/dev/null;"
            "ps -o args | grep -E 'tidewall|tw-' | grep -v grep")[0]

    def start(self, service):
        """Starts `tidewall serve` and waits until it listens."""
        self.before = self.knobs()
        began = time.monotonic()
        # The child opens its output late, so the output of an earlier service must be removed first.
        self.run(f"rm -f /tmp/out; tidewall serve {service} --interface eth0 >/tmp/out 2>&1 & echo $! >/tmp/pid")
        self.wait("grep -qs 'Ctrl-C ends' /tmp/out || ! kill -0 $(cat /tmp/pid) 2>/dev/null", 120)
        output = self.run("cat /tmp/out")
        if "Ctrl-C ends" not in output:
            doing = self.doing()
            self.run("kill -9 $(cat /tmp/pid) 2>/dev/null; true")
            raise Failed("; ".join(filter(None, (output[-600:] or f"no word in {time.monotonic() - began:.0f} s", doing))))
        took = time.monotonic() - began
        self.linked()
        return f"listens after {took:.1f} s"

    def doing(self):
        """Returns what the threads of the service and its children are doing; empty after its end."""
        return self.guest.run(
            "main=$(cat /tmp/pid); for process in $main $(cat /proc/$main/task/*/children); do cd /proc/$process/task &&"
            "for task in *; do echo \"task $task of $process: $(cat $task/comm)\"; for file in wchan syscall stack; do "
            "echo \"$file: $(cat $task/$file)\"; done; done; done 2>/dev/null; true")[0]

    def end(self, signal):
        """Ends the service and compares all knobs with what they were."""
        self.run(f"kill -{signal} $(cat /tmp/pid) || {{ tail -3 /tmp/out; false; }}")  # a dead service has left its error
        if not self.wait("! kill -0 $(cat /tmp/pid) 2>/dev/null"):
            raise Failed(f"lives on 10 s after SIG{signal}")
        return self.unchanged()

    def unchanged(self):
        """Fails unless all knobs have their values from before the start."""
        deadline = time.monotonic() + 8  # a card may reset its link
        while (after := self.knobs()) != self.before and time.monotonic() < deadline:
            time.sleep(0.5)
        changed = [line for line in difflib.ndiff(self.before.splitlines(), after.splitlines()) if line[0] in "-+"]
        if changed:
            raise Failed(f"not put back: {'; '.join(changed)}")
        return "everything is as it was"

    def stack(self):
        """Returns the stack's counters from `tidewall stat`."""
        return json.loads(self.run("tidewall stat --json | tail -1"))["stacks"][0]["now"]


def near(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"`{command}`: {(done.stdout + done.stderr).strip()[-300:]}")
    return done.stdout


def exchange(host, size, port=7, timeout=2.0):
    """Returns the seconds for the echo of one datagram from a fresh port; None if it is lost."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.settimeout(timeout)
        end.connect((host, port))  # ignores answers from other addresses
        payload = random.randbytes(size)
        began = time.monotonic()
        try:
            end.send(payload)
            answer = end.recv(65536)
        except OSError:
            return None
        if answer != payload:
            raise Failed(f"{size} bytes came back as {len(answer)} others")
        return time.monotonic() - began


def burst(host, count=32, port=7):
    """Sends a burst of datagrams from one port; returns after the last echo that arrives."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.settimeout(0.2)
        end.connect((host, port))
        for _ in range(count):
            end.send(bytes(64))
        for _ in range(count):
            try:
                end.recv(2048)
            except OSError:
                return


def echoes(host, sizes=(64,), each=4, port=7):
    """Checks echoes of every size from several ports, so that all queues take part."""
    lost = {size: count for size in sizes if (count := sum(exchange(host, size, port) is None for _ in range(each)))}
    if lost:
        raise Failed("lost: " + ", ".join(f"{count} of {each} of {size} bytes" for size, count in lost.items()))
    return f"{len(sizes) * each} of {len(sizes) * each}"


def again(host=V4, seconds=15):
    """Waits until one echo arrives (links take seconds), then requires all."""
    deadline = time.monotonic() + seconds
    while exchange(host, 64, timeout=0.5) is None:
        if time.monotonic() > deadline:
            raise Failed(f"no echo for {seconds} s")
    return echoes(host, (64, 1000), 8)


def connect(host, port=80):
    """Returns the seconds for a handshake."""
    began = time.monotonic()
    try:
        socket.create_connection((host, port), 8).close()
    except OSError as error:
        raise Failed(f"connecting: {error}") from None
    return time.monotonic() - began


def firsts(once, host, count=8):
    """Compares the slowest of the first exchanges, which open the queues, with a later one."""
    first = [once(host) for _ in range(count)]
    later = sorted(once(host) for _ in range(9))[4]
    text = f"first {max(first) * 1e3:.1f} ms, later {later * 1e3:.1f} ms"
    if max(first) > 2 * later + 0.01 + TIMER:
        raise Failed(text)
    return text


def datagram(host):
    if (took := exchange(host, 64, timeout=4.0)) is None:
        raise Failed("a datagram was lost")
    return took


def get(host, name, port=80):
    connection = http.client.HTTPConnection(host, port, timeout=3)  # at most a retransmission or two
    try:
        connection.request("GET", "/" + name)
        body = connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"{name} bytes: {error!r}") from None
    finally:
        connection.close()
    if body != FILES[name]:
        raise Failed(f"{name} bytes: {len(body)} came, first wrong at "
                     f"{next((at for at, pair in enumerate(zip(body, FILES[name])) if pair[0] != pair[1]), len(body))}")


def files(host):
    began, wrong = time.monotonic(), []
    for name in FILES:
        try:
            get(host, name)
        except Failed as failed:
            wrong.append(str(failed))
    if wrong:
        raise Failed("; ".join(wrong))
    return f"{len(FILES)} of {len(FILES)} in {time.monotonic() - began:.1f} s"


def rss(cell):
    """Checks that a card's RSS table loses its last queue, and regains it when the owner is killed."""
    def table():
        return re.findall(r"^ +\d+: +(.*)$", cell.run("ethtool -x eth0"), re.M)

    cell.run("ip link set eth0 up")
    before = {queue for row in table() for queue in row.split()}
    if before != {"0", "1"}:
        raise Failed(f"the table has the queues {before}")
    cell.run("card eth0 >/tmp/card 2>&1 & echo $! >/tmp/pid")
    if not cell.wait("grep -qs narrowed /tmp/card"):
        raise Failed(cell.run("cat /tmp/card"))
    said = cell.run("head -1 /tmp/card")
    if "does not support" not in said:
        raise Failed(f"a rule for a port: {said}")
    if any("1" in row.split() for row in table()):
        raise Failed(f"not narrowed: {table()}")
    cell.run("kill -9 $(cat /tmp/pid)")
    if not cell.wait("ethtool -x eth0 | grep -q '^ .*: .* 1'"):
        raise Failed(f"not put back: {table()}")
    after = [int(queue) for row in table() for queue in row.split()]
    if after != [place % 2 for place in range(len(after))]:
        raise Failed(f"put back as {after}")
    return "narrowed, and put back after SIGKILL"


# The checks, by name.

def doctor(cell):
    output, _ = cell.guest.run("tidewall doctor --json --interface eth0", 120)
    found = {finding["check"]: finding for finding in json.loads(output) if finding["severity"] != "ok"}
    expected = found.pop("native XDP", None) if cell.driver in WITHOUT_XDP else None
    if cell.driver in WITHOUT_XDP and not expected:
        raise Failed("does not say that the driver may have no native XDP")
    problems = [f"{name}: {finding['text']}" for name, finding in found.items() if finding["severity"] == "problem"]
    if problems:
        raise Failed("; ".join(problems))
    return expected["text"] if expected else ""


def own_way(cell):
    """Checks that Tidewall's channels carry the service, not kernel sockets."""
    began = cell.stack()
    for _ in range(40):
        datagram(V4)
    ended = cell.stack()
    carried = sum(queue["delivered"] for queue in ended["queues"]) - sum(queue["delivered"] for queue in began["queues"])
    kernel = ended["sockets"][0]["through_kernel"] - began["sockets"][0]["through_kernel"]
    text = f"{carried} frames delivered, {kernel} datagrams of 40 by kernel, {len(ended['queues'])} queues"
    if carried < 40 or kernel:
        driver = {name: count for queue in ended["queues"] for name, count in queue["driver"].items()}
        raise Failed(f"{text}; driver: {driver}")
    return text


def own_way_after(cell):
    """Checks the same after all changes: a driver that lost the program regains it within seconds of traffic."""
    for _ in range(5):
        try:
            return own_way(cell)
        except Failed:
            time.sleep(1)
    return own_way(cell)


def not_silent(cell):
    """Checks that `tidewall stat` reports frames that bypass Tidewall, and no others."""
    cell.run("rm -f /tmp/stat; (tidewall stat >/tmp/said 2>&1; mv /tmp/said /tmp/stat) &")
    while cell.guest.run("[ -e /tmp/stat ]")[1]:
        exchange(V4, 64)
    said = "the driver program saw none" in cell.run("cat /tmp/stat")
    try:
        way = own_way(cell)
    except Failed as failed:
        if not said:
            raise Failed(f"stat does not say that {failed}") from None
        return "stat says that the driver program sees nothing"
    if said:
        raise Failed(f"stat says that the driver program sees nothing; {way}")
    return "stat has nothing to say of it"


def tcp_own_way(cell):
    counters = cell.stack()["tcp"]["counters"]
    text = f"{counters['accepted']} connections accepted, {counters['accepted-by-kernel']} of the kernel's"
    if counters["accepted-by-kernel"] or not counters["accepted"]:
        raise Failed(text)
    return text


def flush(cell, once):
    """Checks the first exchanges after the guest's neighbour table was flushed."""
    said = []
    for host in V4, V6:
        cell.run("ip -4 neigh flush dev eth0; ip -6 neigh flush dev eth0")
        said.append(f"{host}: {firsts(once, host)}")
    return "; ".join(said)


def ping(cell):
    for host, size in itertools.product((V4, V6), (56, 3000)):
        near(f"ping -q -c 3 -i 0.2 -W 2 -s {size} {host}")
    return "3 of 3, of 56 and 3,000 bytes, IPv4 and IPv6"


def kernel_tcp(cell):
    for host in V4, V6:
        get(host, "300000", 8080)
    return "300 kB from busybox httpd"


def kernel_udp(cell):
    return ", ".join(echoes(host, (64, 1400, 8000), port=9007) for host in (V4, V6))  # the last in fragments


def link(cell):
    cell.run("ip link set eth0 down; sleep 1; ip link set eth0 up")
    return again()


def carrier(cell):
    cell.guest.carrier(False)
    time.sleep(1)
    cell.guest.carrier(True)
    return again()


def mtu(cell):
    said = []
    try:
        for size, fits in (1400, 1372), (9000, 1472), (1500, 1472):
            output, status = cell.guest.run(f"ip link set eth0 mtu {size}")
            said.append(f"{size} {'refused: ' + ' '.join(output.split()) if status else 'accepted'}")
            again()
            echoes(V4, (fits,), 8)
    except Failed as failed:
        raise Failed(f"{'; '.join(said)}; {failed}") from None
    finally:
        cell.guest.run("ip link set eth0 mtu 1500")
    return "; ".join(said)


def channels(cell, count):
    """Sets the number of channels. Returns the kernel's answer."""
    output = cell.run("ethtool -l eth0 2>&1 || true")
    if not (most := re.search(r"Combined:\s+(\d+)", output)) or int(most[1]) < 2:
        raise NotHere("one queue")
    output, status = cell.guest.run(f"ethtool -L eth0 combined {count}")
    return f"refused: {' '.join(output.split())}" if status else "accepted"


def rechannel(cell, count, back):
    """Checks that the service continues while the number of channels changes, or the kernel refuses that."""
    said = channels(cell, count)
    try:
        again()
        return f"{said}; {echoes(V4, each=20)}"
    except Failed as failed:
        raise Failed(f"{said}; {failed}") from None
    finally:
        channels(cell, back)


def address(cell):
    cell.run(f"ip addr add {LATER}/24 dev eth0")
    try:
        began = cell.stack()["sockets"][0]["through_kernel"]
        said = echoes(LATER, (64, 1000), 8)
        return f"{said}, {cell.stack()['sockets'][0]['through_kernel'] - began} by kernel"
    finally:
        cell.run(f"ip addr del {LATER}/24 dev eth0")


def deny(cell):
    cell.run("""nft 'table inet f { chain input { type filter hook input priority 0; policy drop; iif lo accept
        ct state established,related accept; icmp type echo-request accept
        icmpv6 type { echo-request, nd-neighbor-solicit, nd-neighbor-advert } accept
        udp dport 7 accept; tcp dport 80 accept; }; }'""")


def allow(cell):
    cell.run("nft flush ruleset")


def firewall_udp(cell):
    """Checks that nothing is lost, and that the receiver polls or names the rule that would allow it."""
    text = f"{echoes(V4, each=20)}; {own_way(cell)}"
    for _ in range(6):  # three test datagrams per queue, each counted as lost after 100 ms
        time.sleep(0.15)
        echoes(V4, each=8)
    began = cell.stack()
    for _ in range(40):
        burst(V4)
    ended = cell.stack()
    driven, delivered = (
        sum(queue[name] for queue in ended["queues"]) - sum(queue[name] for queue in began["queues"])
        for name in ("driven", "delivered"))
    text = f"{text}; {driven} of {delivered} frames by own polls"  # few: the emulator runs interrupts first
    said = "udp dport 61000-61063 accept" in cell.run("tidewall stat")
    if said == all(all(queue["napi"]) for queue in ended["queues"] if queue["delivered"]):
        raise Failed(f"{text}, and stat {'says that it does not poll' if said else 'does not say so'}")
    return f"{text}, {'and stat says so' if said else 'with an id for each queue'}"


def one_channel(cell):
    channels(cell, 1)
    cell.linked()


def all_channels(cell):
    channels(cell, 2)


def large_frames(cell):
    """Checks MTU 9,000 at both ends, if the driver passes multi-buffer frames to XDP."""
    if "container" in cell.driver:
        raise NotHere("a bridge carries what its smallest port does")
    cell.run("ip link set eth0 mtu 9000")
    cell.linked()
    output, _ = cell.guest.run("tidewall doctor --json --interface eth0", 120)
    mtu = next(finding for finding in json.loads(output) if finding["check"] == "MTU")
    if mtu["severity"] != "ok":
        usual_frames(cell)
        raise NotHere(mtu["text"])
    near("ip link set tap0 mtu 9000")


def usual_frames(cell):
    near("ip link set tap0 mtu 1500")
    cell.run("ip link set eth0 mtu 1500; ethtool -K eth0 tx-tcp-segmentation on 2>/dev/null; true")


def large_own_way(cell):
    """Checks that frames of several descriptors arrive in channels."""
    began = cell.stack()
    for _ in range(40):
        if exchange(V4, 8000, timeout=4.0) is None:
            raise Failed("a datagram of 8,000 bytes was lost")
    ended = cell.stack()
    carried = sum(queue["delivered"] for queue in ended["queues"]) - sum(queue["delivered"] for queue in began["queues"])
    if carried < 40:
        raise Failed(f"{carried} of 40 frames delivered")
    return f"{carried} frames delivered"


def long_segments(cell):
    """Checks that files leave in segments that the card or the kernel splits."""
    began = sum(queue.get("long_segments", 0) for queue in cell.stack()["queues"])
    text = files(V4)
    sent = sum(queue.get("long_segments", 0) for queue in cell.stack()["queues"]) - began
    if not sent:
        raise Failed(f"{text}, and no long segment")
    return f"{text}, {sent} long segments"


def uncut(cell):
    """Checks the same while the card does not split."""
    cell.run("ethtool -K eth0 tx-tcp-segmentation off")
    try:
        return long_segments(cell)
    finally:
        cell.run("ethtool -K eth0 tx-tcp-segmentation on 2>/dev/null; true")


def nothing(_):
    pass


ECHO, HTTP = "echo --port 7 --address ::", "http /srv --address ::"
# Each stage: a service, actions before its start and after its end, checks (name, column, function), its end.
STAGES = (
    (ECHO, nothing, nothing, (
        ("first-datagram", "first", lambda cell: firsts(datagram, V4)),
        ("echo-ipv4", "echo", lambda cell: echoes(V4, SIZES)),
        ("echo-ipv6", "echo", lambda cell: echoes(V6, SIZES)),
        ("echo-own-way", "own way", own_way),
        ("ping", "beside", ping),
        ("kernel-tcp", "beside", kernel_tcp),
        ("kernel-udp", "beside", kernel_udp),
        ("flush-datagram", "first", lambda cell: flush(cell, datagram)),
        ("link-down-up", "link", link),
        ("carrier-off-on", "link", carrier),
        ("mtu", "changes", mtu),
        ("queues-fewer", "changes", lambda cell: rechannel(cell, 1, 2)),
        ("address-later", "changes", address),
        ("own-way-after", "own way", own_way_after),
        ("not-silent", "own way", not_silent),
    ), ("ctrl-c", "INT")),
    (HTTP, nothing, nothing, (
        ("first-connection", "first", lambda cell: flush(cell, connect)),
        ("http-ipv4", "http", lambda cell: files(V4)),
        ("http-ipv6", "http", lambda cell: files(V6)),
        ("http-own-way", "own way", tcp_own_way),
        ("http-long", "large", long_segments),
        ("http-uncut", "large", uncut),
        ("flush-connection", "first", lambda cell: flush(cell, connect)),
    ), ("kill-9", "KILL")),
    (ECHO, deny, allow, (("firewall-udp", "firewall", firewall_udp),), ("end-udp", "TERM")),
    (HTTP, deny, allow, (("firewall-tcp", "firewall", lambda cell: firsts(connect, V4)),), ("end-tcp", "TERM")),
    (ECHO, large_frames, usual_frames, (
        ("echo-9000", "large", lambda cell: echoes(V4, (*SIZES, 4000, 8972))),
        ("echo-9000-ipv6", "large", lambda cell: echoes(V6, (*SIZES, 4000, 8952))),
        ("own-way-9000", "large", large_own_way),
    ), ("end-9000", "TERM")),
    (HTTP, large_frames, usual_frames, (
        ("http-9000", "large", long_segments),
        ("http-9000-uncut", "large", uncut),
    ), ("end-http-9000", "TERM")),
    (ECHO, one_channel, all_channels, (("queues-more", "changes", lambda cell: rechannel(cell, 2, 1)),), ("end-more", "TERM")),
)
# The table's columns: "own way": frames passed through Tidewall; "first": the first exchanges; "beside": the
# kernel's traffic; "large": long segments and frames of several descriptors; "end": everything was restored.
COLUMNS = ("doctor", "start", "echo", "http", "own way", "first", "beside", "link", "changes", "large", "firewall", "end")
NAMES = ("doctor", *(name for stage in STAGES for name, *_ in stage[3]), *(stage[4][0] for stage in STAGES))
