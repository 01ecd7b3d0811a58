"""Diskless QEMU guests: an initramfs of a kernel's modules and some programs, and a shell in the guest.

The guests are emulated (TCG), because KVM is not available everywhere. Times inside mean little.
"""

import ctypes
import lzma
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
LOADER = "usr/lib64/ld-linux-x86-64.so.2"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# A module that a kernel lacks is built in, or does not exist there. The first three precede all modules that
# compute CRC32c: these find the algorithm by a name that only modprobe could resolve.
MODULES = """crc32c_generic crc32c-intel libcrc32c virtio_pci virtio_console virtio_net igb vmxnet3 e1000e
    veth bridge xsk_diag nf_tables nf_conntrack nft_ct""".split()


class Failed(Exception):
    """A check failed, for the given reason."""


def tool(tools, program, *arguments):
    """Returns the command line that runs a fetched program with its fetched libraries."""
    return [str(tools / LOADER), "--library-path", str(tools / LIBRARIES), str(tools / "usr" / program), *arguments]


def modules(kernel):
    """Returns names and contents of kernel modules and their dependencies, in load order."""
    files = {path.name.split(".")[0].replace("-", "_"): path for path in kernel.rglob("*.ko*")}
    done = {}

    def add(name):
        name = name.replace("-", "_")
        if name in done or name not in files:
            return
        data = files[name].read_bytes()
        if files[name].suffix == ".xz":
            data = lzma.decompress(data)
        found = re.search(rb"\0depends=([^\0]*)\0", data)
        for other in found[1].decode().split(",") if found else []:
            add(other)
        done[name] = data

    for name in MODULES:
        add(name)
    return done


def initramfs(tools, kernel, programs, extra):
    """Returns a cpio archive (newc) that boots `kernel` into scripts/kernels/init, with programs and extra
    files, by name."""
    links = {name: ("usr/" + name).encode() for name in ("bin", "sbin", "lib", "lib64")}
    data = {"init": (HERE / "init").read_bytes(), **extra}
    with tempfile.TemporaryDirectory() as folder:
        stripped = [pathlib.Path(folder) / name for name in programs]
        for path, program in zip(stripped, programs.values()):
            shutil.copy(program, path)
            subprocess.run(["strip", path], check=True)
        for source, name in [*((path, f"bin/{path.name}") for path in stripped), *((tools / "usr" / name, name) for name in (
                "bin/busybox", "bin/dash", "bin/ip", "sbin/ethtool", "sbin/nft"))]:
            data[f"usr/{name}"] = source.read_bytes()
            listed = subprocess.run([*tool(tools, "")[:3], "--list", source], capture_output=True, text=True)
            for library in re.findall(rf"{re.escape(str(tools))}/(\S+)", listed.stdout):
                data[library] = (tools / library).read_bytes()
            if "not found" in listed.stdout + listed.stderr:
                raise Failed(f"{name} needs newer libraries than the guest's: {listed.stdout or listed.stderr}")
    data[LOADER] = (tools / LOADER).read_bytes()
    order = []
    for name, content in modules(kernel).items():
        data[f"modules.d/{name}.ko"] = content
        order.append(f"/modules.d/{name}.ko\n")
    data["modules"] = "".join(order).encode()
    folders = {str(parent) for name in data for parent in pathlib.PurePath(name).parents} - {"."}
    entries = [(name, stat.S_IFDIR | 0o755, b"") for name in sorted(folders)]
    entries += [(name, stat.S_IFREG | 0o755, content) for name, content in data.items()]
    entries += [(name, stat.S_IFLNK | 0o777, target) for name, target in links.items()]
    archive = bytearray()
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")]):
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        for part in ("070701" + "".join(f"{field:08x}" for field in fields) + name + "\0").encode(), content:
            archive += part + bytes(-len(part) % 4)
    return bytes(archive)


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Guest:
    """A running guest. Use it in a `with` statement, which kills it at the end."""

    def __init__(self, tools, kernel, archive, console, *options):
        image = next(path for path in sorted(kernel.rglob("vmlinuz*")))
        self.console = console
        self.line, theirs = socket.socketpair()
        self.monitor, other = socket.socketpair()
        with theirs, other, open(console, "wb") as output:
            self.process = subprocess.Popen(
                [*tool(tools, "bin/qemu-system-x86_64"), "-L", tools / "usr/share/qemu", "-L", tools / "usr/share/seabios",
                 "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "768",
                 "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-kernel", image, "-initrd", archive,
                 "-append", "console=ttyS0 quiet loglevel=4 panic=-1 net.ifnames=0 mitigations=off random.trust_cpu=on",
                 "-chardev", "stdio,id=console", "-serial", "chardev:console",
                 "-chardev", f"socket,id=shell,fd={theirs.fileno()}",
                 "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=shell,nr=1",
                 "-chardev", f"socket,id=monitor,fd={other.fileno()}", "-mon", "chardev=monitor,mode=readline", *options],
                env={**os.environ, "QEMU_MODULE_DIR": str(tools / LIBRARIES / "qemu")},
                pass_fds=[theirs.fileno(), other.fileno()],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent, start_new_session=True)  # Ctrl-C goes to this process only

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.line.close()
        self.monitor.close()

    def run(self, command, seconds=60):
        """Returns the output (both streams) and exit status of a shell command in the guest."""
        return self._say(command + "\necho {0} $?\n", seconds)

    def enter(self, namespace):
        """Continues with a shell in a network namespace of the guest."""
        self._say(f"exec ip netns exec {namespace} dash -c 'echo {{0}} 0; exec dash'\n", 10)

    def carrier(self, on):
        """Removes or restores the carrier of the guest's card (`-netdev id=net0`)."""
        self.monitor.sendall(f"set_link net0 {'on' if on else 'off'}\n".encode())

    def _say(self, text, seconds):
        """Sends `text` with a mark in it, and waits until the mark returns with a status."""
        mark = f"@{time.monotonic_ns()}"
        try:
            self.line.sendall(text.replace("{0}", mark).encode())
        except OSError:
            raise Failed(f"the guest has ended; its last words are in {self.console}") from None
        got, end = b"", time.monotonic() + seconds
        while not (found := re.search(rf"(?s)(.*){mark} (\d+)\n".encode(), got)):
            self.line.settimeout(max(0.01, end - time.monotonic()))
            try:
                part = self.line.recv(65536)
            except OSError:
                part = b""
            if not part:  # a late shell would answer later commands with this one's output
                self.process.kill()
                raise Failed(f"the guest ended, or was by far too slow, at: {text[:200]}; see {self.console}")
            got += part
        return found[1].decode(errors="replace").strip(), int(found[2])
