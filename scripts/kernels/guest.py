"""Diskless QEMU guests: an initramfs of a kernel's modules and some programs, and a shell in the guest.

Emulated (TCG): KVM is not to be had everywhere, and times inside mean little.
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
# Those that a kernel lacks are built in or do not exist there. The first three before all that compute
# CRC32c, which look their algorithm up by a name that only modprobe could follow.
MODULES = """crc32c_generic crc32c-intel libcrc32c virtio_pci virtio_console virtio_net igb vmxnet3 e1000e
    veth bridge xsk_diag nf_tables nf_conntrack nft_ct""".split()


class Failed(Exception):
    """A check's answer is no, for the reason given."""


def tool(tools, program, *arguments):
    """The command line that runs a fetched program, with the libraries it was fetched with."""
    return [str(tools / LOADER), "--library-path", str(tools / LIBRARIES), str(tools / "usr" / program), *arguments]


def modules(kernel):
    """Names and contents of kernel modules and what they depend on, in an order that loads."""
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
    """A cpio archive (newc) that boots `kernel` into scripts/kernels/init, with programs and more files, by
    name."""
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
    """A running guest; use it in a `with`, which kills it at the end."""

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
                preexec_fn=die_with_parent, start_new_session=True)  # Ctrl-C is for us to act on

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.line.close()
        self.monitor.close()

    def run(self, command, seconds=60):
        """What a shell command in the guest prints (both streams) and its exit status."""
        return self._say(command + "\necho {0} $?\n", seconds)

    def enter(self, namespace):
        """Goes on with a shell in a network namespace of the guest."""
        self._say(f"exec ip netns exec {namespace} dash -c 'echo {{0}} 0; exec dash'\n", 10)

    def carrier(self, on):
        """Takes the carrier of the guest's card (`-netdev id=net0`) away, or gives it back."""
        self.monitor.sendall(f"set_link net0 {'on' if on else 'off'}\n".encode())

    def _say(self, text, seconds):
        """Sends `text` with a mark in it, and waits until the mark comes with a status."""
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
            if not part:  # a shell that is late would answer later questions with this one's words
                self.process.kill()
                raise Failed(f"the guest ended, or was by far too slow, at: {text[:200]}; see {self.console}")
            got += part
        return found[1].decode(errors="replace").strip(), int(found[2])
